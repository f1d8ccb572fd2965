import CTestSupport
import Dispatch
import Glibc
import Testing

@testable import Coroutine

// Functions whose names the tests look for on stacks.

@inline(never)
private func computesForLong(_ isOver: Flag) {
  while !isOver.isRaised {}
}

@inline(never)
private func computesInABody(_ isOver: Flag) -> Int {
  let numbers = co_sequence(of: Int.self) { yield in
    computesForLong(isOver)
    try yield(1)
  }
  let sum = numbers.reduce(0, +)
  return isOver.isRaised ? sum : 0
}

/// Without a frame of its own, `read` hides the function that has called it.
@inline(never)
private func readsAByte(_ descriptor: Int32) -> Int {
  var byte: UInt8 = 0
  let count = read(descriptor, &byte, 1)
  return count + Int(byte)
}

@inline(never)
private func readsForLong(_ descriptor: Int32) -> Int {
  let sum = readsAByte(descriptor)
  return sum > 0 ? sum : 0
}

/// Where a dump says that running coroutines are.
///
/// In processes of their own: the threads are the shared workers. The time for which a coroutine has run is real.
@Suite("Stacks of running coroutines", .timeLimit(.minutes(10)), .tags(.realClock), .enabled(if: !isSanitized))
struct RunningStackTests {
  typealias Entry = CoroutineRuntime.Snapshot.Coroutine

  /// The entry of a coroutine in the first snapshot in which `isMatch` is true of it: a thread may answer too late.
  private static func entry(named name: String, where isMatch: (Entry) -> Bool) -> Entry {
    while true {
      let entries = CoroutineRuntime.snapshot(stacks: true).coroutines
      if let entry = entries.first(where: { $0.name == name }), isMatch(entry) { return entry }
      sched_yield()
    }
  }

  private static func names(_ entry: Entry) -> [String] {
    CoroutineRuntime.frames(at: entry.stack).map { $0.symbol ?? "" }
  }

  @Test func `a coroutine that computes has its frames, its thread, and what that does`() async {
    await #expect(processExitsWith: .success) {
      let isOver = Flag()
      let job = co_launch(name: "hog") { computesForLong(isOver) }
      // In the first instructions of a function its caller is missing.
      let entry = Self.entry(named: "hog") { Self.names($0).contains { $0.contains("computesForLong") } }
      let names = Self.names(entry)
      #expect(
        names.contains { $0.contains("computesForLong") } && names.last?.hasPrefix("trampoline") == true,
        "\(names)"
      )
      #expect(entry.activity == "computing" && !entry.isCut && entry.state == .running)
      #expect(access("/proc/self/task/\(entry.thread ?? 0)", F_OK) == 0)
      var dump = ""
      while !dump.contains("computesForLong") { dump = CoroutineRuntime.dump(.stacks) }
      #expect(dump.contains(#/\n1 running, \d+ ms, computing, on thread \d+\n/#), "\(dump)")
      #expect(CoroutineRuntime.dump(.list).contains(#/"hog" running for at most \d+ ms, computing, on thread \d+ on /#))
      isOver.raise()
      try await job.value
    }
  }

  @Test func `a coroutine that computes in a generator's body has the frames of its step as well`() async {
    await #expect(processExitsWith: .success) {
      let isOver = Flag()
      let job = co_launch(name: "steps") { computesInABody(isOver) }
      let entry = Self.entry(named: "steps") { Self.names($0).contains { $0.contains("computesForLong") } }
      let names = Self.names(entry)
      let inner = names.firstIndex { $0.contains("computesForLong") }
      let outer = names.firstIndex { $0.contains("computesInABody") }
      #expect(inner.map { $0 < outer ?? -1 } == true, "\(names)")
      isOver.raise()
      _ = try await job.value
    }
  }

  @Test func `a system call is named, and only in one that goes on is the thread asked for frames`() async {
    await #expect(processExitsWith: .success) {
      let pipe = PipePair()
      _ = fcntl(pipe.reader, F_SETFL, 0)
      let reader = co_launch(name: "reader") { readsForLong(pipe.reader) }
      let reading = Self.entry(named: "reader") { $0.activity == "in read(2)" && !$0.stack.isEmpty }
      let names = Self.names(reading)
      #expect(names.contains { $0.contains("readsForLong") }, "\(names)")
      pipe.put()
      let count = try await reader.value
      #expect(count > 0)
      // One that a signal would end, with an error.
      let other = PipePair()
      let sleeper = co_launch(name: "sleeper") {
        var query = pollfd(fd: other.reader, events: Int16(POLLIN), revents: 0)
        return poll(&query, 1, -1)
      }
      let sleeping = Self.entry(named: "sleeper") { $0.activity?.contains("poll") == true }
      #expect(sleeping.stack.isEmpty, "\(sleeping)")
      let dump = CoroutineRuntime.dump(.stacks)
      #expect(dump.contains("no stack: the signal that asks for it would end the system call"), "\(dump)")
      other.put()
      let result = try await sleeper.value
      #expect(result == 1)
    }
  }

  /// The walk takes its time, and would list more coroutines as running than there are threads.
  @Test(arguments: [false, true])
  func `what ran when the walk came by is read once more at its end`(stacks: Bool) async throws {
    let (isOver, gate) = (Flag(), Gate())
    let queues = (taggedQueue("running.parked"), taggedQueue("running.hog"))
    let parked = co_launch(on: queues.0) { try gate.pass() }
    while SnapshotReader.value(of: InspectedJob(parked)).state != .waiting { await Task.yield() }
    let hog = co_launch(on: queues.1) {
      while !isOver.isRaised {}
      try gate.pass()
    }
    while SnapshotReader.value(of: InspectedJob(hog)).state != .running { await Task.yield() }
    let schedulers = [QueueHost.scheduler(for: queues.0), QueueHost.scheduler(for: queues.1)]
    let entries = try await onOwnThread {
      var entries: [Entry] = []
      _ = CoroutineRuntime.visit(stacks: stacks, of: schedulers) { entry, _ in
        entries.append(entry)
        guard entry.id == parked.id else { return }
        // The walk has passed the other one, which now goes on.
        isOver.raise()
        // It waits some instructions before it has left its stack, and then its stack cannot be read.
        while !hog.isParked { sched_yield() }
      }
      return entries
    }
    #expect(entries.map(\.id) == [parked.id, hog.id])
    #expect(entries.last?.state == .waiting && entries.last?.stack.isEmpty == !stacks, "\(entries)")
    gate.open()
    try await parked.value
    try await hog.value
  }

  @Test func `a stack that ends in code without a frame pointer is marked as cut`() async throws {
    let gate = Gate()
    let text = try await onCoroutine(on: taggedQueue("stacks.cut")) {
      co_launch(name: "cut") {
        var gate = gate
        withUnsafeMutablePointer(to: &gate) { gate in
          cts_without_frame_pointer(
            { try? $0?.assumingMemoryBound(to: Gate.self).pointee.pass() },
            UnsafeMutableRawPointer(gate)
          )
        }
      }
      co_launch(name: "whole") { try gate.pass() }
      try co_yield()
      let entries = CoroutineRuntime.snapshot(stacks: true, of: [QueueHost.current.unsafelyUnwrapped]).coroutines
      #expect(entries.first { $0.name == "cut" }?.isCut == true)
      #expect(entries.first { $0.name == "whole" }?.isCut == false)
      let text = StackDump.text(of: [QueueHost.current.unsafelyUnwrapped])
      gate.open()
      return text
    }
    let groups = text.split(separator: "\n\n").filter { $0.contains("… cut here") }
    #expect(groups.count == 1 && groups.first?.contains("\"cut\"") == true, "\(text)")
  }
}
