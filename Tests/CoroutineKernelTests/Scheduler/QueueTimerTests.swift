import Dispatch
import Testing

@testable import Coroutine

/// The number of times that a scheduler is woken for its timers.
@Suite(.timeLimit(.minutes(10)))
struct QueueTimerTests {
  private let timer = QueueTimer(DispatchQueue(label: "alarm"))
  private let millisecond: UInt64 = 1_000_000
  /// One time for a whole test, however long its thread is delayed.
  private let start = Clock.now

  @Test func `many sleeping coroutines are woken by a repeating timer`() {
    timer.sourceFired(at: start)
    timer.timersFired(40)
    timer.arm(start + millisecond)
    #expect(!timer.isRepeating, "forty are no crowd")
    timer.timersFired(40)
    timer.arm(start + millisecond)
    #expect(timer.isRepeating)
  }

  @Test func `the timer stops repeating when few timers are due`() {
    timer.sourceFired(at: start)
    timer.timersFired(100)
    timer.arm(start + millisecond)
    timer.sourceFired(at: start)
    timer.timersFired(1)
    timer.arm(start + millisecond)
    #expect(!timer.isRepeating)
  }

  @Test func `the timer stops repeating when the next deadline is a minute away, or there is none`() {
    timer.sourceFired(at: start)
    timer.timersFired(100)
    timer.arm(start + millisecond)
    timer.arm(start + 60_000 * millisecond)
    #expect(!timer.isRepeating)
    timer.arm(start + millisecond)
    #expect(timer.isRepeating)
    timer.stopRepeating()
    #expect(!timer.isRepeating)
  }

  // The queue's timer is one of Dispatch.
  @Test(.tags(.realClock))
  func `many and single sleeping coroutines of one queue wake in time, also a single one after many`()
    async throws
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
