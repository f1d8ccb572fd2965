import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// Two workers, one of which backs off from stealing.
@Suite("A worker that backs off", .timeLimit(.minutes(10)), .enabled(if: Processors.usable > 1))
struct BackingOffTests {
  /// The pool lives for ever, as the shared one does.
  private let group = ownWorkers("backing off")
  private var one: Scheduler { group.workers[0] }
  private var other: Scheduler { group.workers[1] }

  @Test func `is made to look for work again, and goes idle if there is none`() async throws {
    try await rest()
    while group.backingOff.load(ordering: .relaxed) != 0 { sched_yield() }
    while group.idle.load(ordering: .relaxed) & 0b10 == 0 { sched_yield() }
  }

  @Test func `helps a worker with much work, even if it is not stuck`() async throws {
    for _ in 0..<10 {
      try await rest()
      let helped = Flag()
      // They yield all the time, so the worker is never stuck; only an attempt to steal finds them.
      try await co_launch(on: one.currentQueue) { [other] in
        let jobs = (0..<4).map { _ in
          co_launch {
            while !helped.isRaised {
              if other.isRunningHere { helped.raise() }
              try co_yield()
            }
          }
        }
        for job in jobs { try job.join() }
      }
      .value
    }
  }

  @Test func `gets launches from outside`() {
    // As if one were busy and the other backed off; nothing runs here.
    group.idle.store(0, ordering: .relaxed)
    group.backingOff.store(0b10, ordering: .relaxed)
    for _ in 0..<4 { #expect(group.nextWorker() === other) }
  }

  // Timers of a computing worker are due by the real clock.
  @Test(.tags(.realClock))
  func `gets the timers of a computing worker, even while unprofitable steals continue`() async throws {
    try await rest()
    let woke = Flag()
    try await co_launch(on: one.currentQueue) { [one] in
      let sleeper = co_launch {
        try co_delay(.milliseconds(1))
        woke.raise()
      }
      while one.nextTimer.load(ordering: .relaxed) == .max, !woke.isRaised { try co_yield() }
      // Two tiny jobs now and then, so that stealing them does not pay.
      var launched = Clock.now
      while !woke.isRaised {
        if Clock.now - launched > 50_000 {
          launched = Clock.now
          co_launch {}
          co_launch {}
        }
      }
      try sleeper.join()
    }
    .value
  }

  /// Returns when the other worker has backed off.
  private func rest() async throws {
    let before = group.backoffs.load(ordering: .relaxed)
    var hasRested: Bool { group.backoffs.load(ordering: .relaxed) != before }
    // Repeated if its drain has changed threads in between, which counts as a steal that pays.
    while !hasRested {
      try await co_launch(on: other.currentQueue) { [other] in
        for _ in 1..<StealBackoff.limit {
          other.asWorker { $0.stealBackoff.took(1_000_000, at: .now) }
          _ = other.asWorker { $0.stealBackoff.pays(at: .now) }
        }
        // Judged when this job has ended and its worker has nothing to do.
        other.asWorker { $0.stealBackoff.took(1_000_000, at: .now) }
      }
      .value
      while !hasRested, group.withoutDrain() & 0b10 == 0 { sched_yield() }
    }
  }
}
