import Dispatch
import Testing

@testable import Coroutine

/// How often a scheduler has itself woken for its timers.
@Suite(.timeLimit(.minutes(1)))
struct AlarmTests {
  private let alarm = Alarm(DispatchQueue(label: "alarm"))
  private let millisecond: UInt64 = 1_000_000
  /// One time for all that happens in a test, however long its thread is kept from running.
  private let start = Clock.now

  @Test func `a crowd of sleepers is woken by a timer that repeats by itself`() {
    alarm.wentOff(at: start)
    alarm.fired(40)
    alarm.arm(start + millisecond)
    #expect(!alarm.isTicking, "forty are no crowd")
    alarm.fired(40)
    alarm.arm(start + millisecond)
    #expect(alarm.isTicking)
  }

  @Test func `it goes back to single alarms when no crowd was due any more`() {
    alarm.wentOff(at: start)
    alarm.fired(100)
    alarm.arm(start + millisecond)
    alarm.wentOff(at: start)
    alarm.fired(1)
    alarm.arm(start + millisecond)
    #expect(!alarm.isTicking)
  }

  @Test func `and when the next sleeper wakes in a minute, or there is none`() {
    alarm.wentOff(at: start)
    alarm.fired(100)
    alarm.arm(start + millisecond)
    alarm.arm(start + 60_000 * millisecond)
    #expect(!alarm.isTicking)
    alarm.arm(start + millisecond)
    #expect(alarm.isTicking)
    alarm.rests()
    #expect(!alarm.isTicking)
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
