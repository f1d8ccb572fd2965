import CCoroutine
import Glibc
import Testing

@testable import Coroutine

/// Coroutines that went deep once, and wait for a gate a few frames deep.
private struct DeepCrowd {
  let gate = Gate()
  let jobs: [Job<Bool>]

  init(_ count: Int, levels: Int = 40) async {
    let gate = gate
    jobs = (0..<count).map { number in
      co_launch(name: "deep \(number)") {
        let wentWell = goDeep(levels, UInt64(number))
        let stayedWell = try goDeep(2, UInt64(number)) { try gate.pass() }
        return wentWell && stayedWell
      }
    }
    for job in jobs { while !job.isParked { await Task.yield() } }
  }

  var stacks: [ParkedStack] { jobs.map { ParkedStack(of: $0) } }

  /// Opens the gate, and returns whether all frames were as they had been.
  func end() async throws -> Bool {
    gate.open()
    for job in jobs {
      if try await !job.value { return false }
    }
    return true
  }
}

/// In processes of their own, because a sweep is over all coroutines of a process.
@Suite("The dead pages of parked coroutines", .timeLimit(.minutes(10)), .enabled(if: !isSanitized))
struct DeadPagesTests {
  @Test func `a parked coroutine keeps the pages of its frames, and none below them`() async {
    await #expect(processExitsWith: .success) {
      let crowd = await DeepCrowd(20)
      #expect(crowd.stacks.allSatisfy { $0.dead >= 8 })
      let found = DeadPages.sweep(olderThan: 0)
      #expect(found.swept == 20)
      #expect(crowd.stacks.allSatisfy { $0.dead == 0 && $0.live == $0.used })
      let isWhole = try await crowd.end()
      #expect(isWhole)
    }
  }

  @Test func `each wait is swept once, and the next one again`() async {
    await #expect(processExitsWith: .success) {
      let (gate, channel) = (Gate(), Channel<Int>())
      let job = co_launch { () -> Bool in
        while try channel.receive() == 1 { guard goDeep(40) else { return false } }
        try gate.pass()
        return true
      }
      @Sendable func send(_ value: Int) async throws {
        try await co_launch { try channel.send(value) }.value
        while !job.isParked { await Task.yield() }
      }
      try await send(1)
      #expect(DeadPages.sweep(olderThan: 0).swept == 1)
      #expect(DeadPages.sweep(olderThan: 0).swept == 0)
      try await send(1)
      #expect(DeadPages.sweep(olderThan: 0).swept == 1)
      try await send(0)
      gate.open()
      let isWhole = try await job.value
      #expect(isWhole)
    }
  }

  @Test func `a wait that is younger is not swept, and left for the next sweep`() async {
    await #expect(processExitsWith: .success) {
      let crowd = await DeepCrowd(10)
      let found = DeadPages.sweep(olderThan: 3_600_000_000_000)
      #expect(found.swept == 0 && found.open >= 10)
      #expect(crowd.stacks.allSatisfy { $0.dead >= 8 })
      let isWhole = try await crowd.end()
      #expect(isWhole)
    }
  }

  @Test func `a coroutine that waits on a second stack keeps the frames of both, and the pages below none of them`()
    async
  {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      let job = co_launch { () -> Bool in
        guard goDeep(40, 5) else { return false }
        return try goDeep(2, 8) {
          try co_withStack(.bytes(1 << 20)) {
            guard goDeep(40, 6), try goDeep(2, 7, { try gate.pass() }) else { return }
          }
        }
      }
      while !job.isParked { await Task.yield() }
      #expect(DeadPages.sweep(olderThan: 0).swept == 2)
      gate.open()
      let isWhole = try await job.value
      #expect(isWhole)
    }
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      let job = co_launch { () -> Bool in
        guard goDeep(40, 5) else { return false }
        let numbers = co_sequence(of: Int.self) { yield in
          guard goDeep(40, 6), try goDeep(2, 7, { try gate.pass() }) else { return }
          try yield(3)
        }
        return goDeep(2, 8) { _ = numbers.next() }
      }
      while !job.isParked { await Task.yield() }
      #expect(DeadPages.sweep(olderThan: 0).swept == 2)
      gate.open()
      let isWhole = try await job.value
      #expect(isWhole)
    }
  }

  @Test func `a dump tells the age of a swept wait`() async {
    await #expect(processExitsWith: .success) {
      let crowd = await DeepCrowd(1)
      @Sendable func entry() throws -> CoroutineRuntime.Snapshot.Coroutine {
        try #require(CoroutineRuntime.snapshot(stacks: true).coroutines.first { $0.name == "deep 0" })
      }
      var before = try entry()
      while before.since == .zero { before = try entry() }
      #expect(DeadPages.sweep(olderThan: 0).swept == 1)
      let after = try entry()
      #expect(after.since >= before.since && after.since < before.since + .seconds(60))
      #expect(!after.isTorn && after.stack == before.stack)
      let isWhole = try await crowd.end()
      #expect(isWhole)
    }
  }

  @Test func `dead pages go back by themselves while coroutines wait`() async {
    await #expect(processExitsWith: .success) {
      let crowd = await DeepCrowd(100)
      while crowd.stacks.contains(where: { $0.dead > 0 }) { await Task.yield() }
      #expect(crowd.stacks.allSatisfy { $0.live == $0.used })
      let isWhole = try await crowd.end()
      #expect(isWhole)
    }
  }
}
