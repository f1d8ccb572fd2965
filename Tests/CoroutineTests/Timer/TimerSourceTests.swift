import Dispatch
import Testing

@testable import Coroutine

/// How often a scheduler has itself woken for its timers.
@Suite(.timeLimit(.minutes(1)))
struct TimerSourceTests {
  private let timerSource = TimerSource(DispatchQueue(label: "alarm"))
  private let millisecond: UInt64 = 1_000_000
  /// One time for all that happens in a test, however long its thread is kept from running.
  private let start = Clock.now

  @Test func `a crowd of sleepers is woken by a timer that repeats by itself`() {
    timerSource.wentOff(at: start)
    timerSource.fired(40)
    timerSource.arm(start + millisecond)
    #expect(!timerSource.isTicking, "forty are no crowd")
    timerSource.fired(40)
    timerSource.arm(start + millisecond)
    #expect(timerSource.isTicking)
  }

  @Test func `it goes back to single alarms when no crowd was due any more`() {
    timerSource.wentOff(at: start)
    timerSource.fired(100)
    timerSource.arm(start + millisecond)
    timerSource.wentOff(at: start)
    timerSource.fired(1)
    timerSource.arm(start + millisecond)
    #expect(!timerSource.isTicking)
  }

  @Test func `and when the next sleeper wakes in a minute, or there is none`() {
    timerSource.wentOff(at: start)
    timerSource.fired(100)
    timerSource.arm(start + millisecond)
    timerSource.arm(start + 60_000 * millisecond)
    #expect(!timerSource.isTicking)
    timerSource.arm(start + millisecond)
    #expect(timerSource.isTicking)
    timerSource.rests()
    #expect(!timerSource.isTicking)
  }

  @Test func `crowds and lone sleepers of one queue all wake in time, the lone ones after the crowds too`() async throws
  {
    let queue = DispatchQueue(label: "sleepers")
    let early = try await onCoroutine(on: queue) {
      var early = 0
      for _ in 0..<3 {
        let crowd = (0..<2000).map { number in co_launch { try isEarly(after: .microseconds(10 * number)) } }
        for job in crowd where try job.join() { early += 1 }
        if try isEarly(after: .milliseconds(30)) { early += 1 }
      }
      return early
    }
    #expect(early == 0)
  }
}

private func isEarly(after duration: Duration) throws -> Bool {
  let start = Clock.now
  try co_delay(duration)
  return Clock.now < start + UInt64(duration.nanoseconds)
}
