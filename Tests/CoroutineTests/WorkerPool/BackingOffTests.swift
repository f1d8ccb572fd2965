import Dispatch
import Synchronization
import Testing

@testable import Coroutine

import Glibc

/// Two workers of which one has been taught that stealing does not pay.
@Suite("A lane that rests", .timeLimit(.minutes(1)), .enabled(if: Processors.usable > 1))
struct BackingOffTests {
  /// Lives for ever, as the shared one does.
  private let group = ownLanes("resting")
  private var one: Scheduler { group.workers[0] }
  private var other: Scheduler { group.workers[1] }

  @Test func `is sent to look for work again, and is idle like any other where there is none`() async throws {
    try await rest()
    while group.backingOff.load(ordering: .relaxed) != 0 { sched_yield() }
    while group.idle.load(ordering: .relaxed) & 0b10 == 0 { sched_yield() }
  }

  @Test func `helps a worker that has too much, although nothing is stuck there`() async throws {
    for _ in 0..<10 {
      try await rest()
      let helped = Flag()
      // They give way all the time, so nothing is ever stuck; only a look finds them.
      try await co_launch(on: one.currentQueue) { [other] in
        let jobs = (0..<4).map { _ in
          co_launch {
            while !helped.isRaised {
              if other.isOwnTurn { helped.raise() }
              try co_yield()
            }
          }
        }
        for job in jobs { try job.join() }
      }
      .value
    }
  }

  @Test func `gets what is launched from outside`() {
    // As if one were busy and the other at rest; nothing runs here.
    group.idle.store(0, ordering: .relaxed)
    group.backingOff.store(0b10, ordering: .relaxed)
    for _ in 0..<4 { #expect(group.nextWorker() === other) }
  }

  @Test func `is where the timers of a worker go that computes, though poor thefts go on`() async throws {
    try await rest()
    let woke = Flag()
    try await co_launch(on: one.currentQueue) { [one] in
      let sleeper = co_launch {
        try co_delay(.milliseconds(1))
        woke.raise()
      }
      while one.nextTimer.load(ordering: .relaxed) == .max, !woke.isRaised { try co_yield() }
      // Two tiny jobs every now and then, for the thief to be disappointed by.
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

  /// Returns when the other worker has gone to rest.
  private func rest() async throws {
    let before = group.backoffs.load(ordering: .relaxed)
    var hasRested: Bool { group.backoffs.load(ordering: .relaxed) != before }
    // Again where its drain has changed threads in between, which counts as a theft that pays.
    while !hasRested {
      try await co_launch(on: other.currentQueue) { [other] in
        for _ in 1..<StealBackoff.patience {
          other.stealBackoff.took(1_000_000, at: .now)
          _ = other.stealBackoff.pays(at: .now)
        }
        // Judged when this job has ended and its worker has nothing to do.
        other.stealBackoff.took(1_000_000, at: .now)
      }
      .value
      while !hasRested, group.withoutDrain() & 0b10 == 0 { sched_yield() }
    }
  }
}
