import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// The search beside coroutines that run on several threads: in a world nothing changes while it reads.
@Suite("Deadlocks on threads", .timeLimit(.minutes(10)))
struct DeadlockThreadTests {
  /// Coroutines that take random locks inside of one another, for ever.
  private final class Program: Sendable {
    let locks = (0..<4).map { _ in FairMutex() }
    let steps: [Counter]
    let jobs = Locked<[Job<Void>]>([])

    final class Counter: Sendable {
      let value = Atomic<Int>(0)
    }

    init(_ count: Int) { steps = (0..<count).map { _ in Counter() } }

    func launch(_ number: Int) {
      let job = co_launch(name: "locks \(number)") { [self] in
        while true { try step(number, depth: 0) }
      }
      jobs.withLock { if number < $0.count { $0[number] = job } else { $0.append(job) } }
    }

    private func step(_ number: Int, depth: Int) throws {
      let lock = locks[Int.random(in: 0..<locks.count)]
      if depth < 2, !lock.isHeldByCaller {
        try lock.withLock {
          steps[number].value.wrappingAdd(1, ordering: .relaxed)
          if Bool.random() { try co_yield() }
          // Some give up, so that the search also meets waits that end.
          try? co_timeout(Int.random(in: 0..<3) == 0 ? .microseconds(200) : nil) { try step(number, depth: depth + 1) }
          try co_checkCancelled()
        }
      } else {
        try co_yield()
      }
      steps[number].value.wrappingAdd(1, ordering: .relaxed)
    }
  }

  @Test func `a reported coroutine takes no step before one of its circle is cancelled`() async throws {
    try await onOwnThread {
      let program = Program(8)
      for number in 0..<8 { program.launch(number) }
      var circles = 0
      let end = ContinuousClock.now + .seconds(2)
      // On a busy machine the first circle may come late.
      while ContinuousClock.now < end || circles == 0 {
        let own = CoroutineRuntime.deadlocks().map { circle in
          circle.compactMap { member in member.name.flatMap { $0.hasPrefix("locks ") ? Int($0.dropFirst(6)) : nil } }
        }
        for circle in own where !circle.isEmpty {
          let before = circle.map { program.steps[$0].value.load(ordering: .relaxed) }
          for _ in 0..<200 { sched_yield() }
          #expect(circle.map { program.steps[$0].value.load(ordering: .relaxed) } == before, "\(circle)")
          circles += 1
          let victim = circle[0]
          let job = program.jobs.current[victim]
          job.cancel()
          _ = outcome { try job.blockingWait() }
          program.launch(victim)
        }
      }
      for job in program.jobs.current { job.cancel() }
      for job in program.jobs.current { _ = outcome { try job.blockingWait() } }
    }
  }
}
