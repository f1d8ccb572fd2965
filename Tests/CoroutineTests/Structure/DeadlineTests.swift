import CoroutineTesting
import Testing

@testable import Coroutine

@Suite("Deadlines and the clock", .timeLimit(.minutes(10)))
struct DeadlineTests {
  @Test(.inWorlds) func `the time left is that of the earliest visible deadline`() throws {
    #expect(co_timeLeft == nil && co_deadline == nil)
    let start = co_now
    try co_timeout(.seconds(10)) {
      #expect(co_timeLeft == .seconds(10))
      try co_delay(.seconds(4))
      #expect(co_timeLeft == .seconds(6) && co_deadline == start + .seconds(10))
      try co_timeout(.seconds(60)) { #expect(co_timeLeft == .seconds(6)) }
      try co_timeout(.seconds(1)) { #expect(co_timeLeft == .seconds(1)) }
      co_shield { #expect(co_timeLeft == nil) }
      #expect(try co_launch { co_timeLeft }.join() == nil)
    }
    #expect(co_timeLeft == nil)
    try? co_timeout(.seconds(1)) {
      try? co_delay(.seconds(5))
      #expect(co_timeLeft == .zero)
    }
    try co_timeout(.seconds(Int64.max)) { #expect(co_timeLeft == nil) }
  }

  @Test(.inWorlds) func `a deadline at an instant is shared by calls that follow one another`() throws {
    let deadline = co_now + .seconds(10)
    try co_timeout(until: deadline) { try co_delay(.seconds(7)) }
    let seen = outcome { try co_timeout(until: deadline) { try co_delay(.seconds(7)) } }
    #expect(seen == "TimeoutError")
    #expect(worldTime == .seconds(10))
    #expect(outcome { try co_timeout(until: deadline) { Issue.record("it has run") } } == "TimeoutError")
    #expect(try co_timeout(until: nil) { 1 } == 1)
  }

  @Test(.inWorlds) func `a delay that ends exactly at its deadline throws`() throws {
    for nanoseconds in [1, 999_999, 65_536, 3_600_000_000_001] {
      let start = worldTime
      let inside = Trace()
      let seen = outcome {
        try co_timeout(.nanoseconds(nanoseconds)) {
          inside(outcome { try co_delay(.nanoseconds(nanoseconds)) })
          try co_checkCancelled()
        }
      }
      #expect(seen == "TimeoutError" && inside.all == ["CancellationError"])
      #expect(worldTime - start == .nanoseconds(nanoseconds))
      let later = Duration.nanoseconds(nanoseconds + 1)
      #expect(outcome { try co_timeout(later) { try co_delay(.nanoseconds(nanoseconds)) } } == "()")
    }
  }

  @Test(.inWorlds) func `the clock of a world shows the world's time`() throws {
    let start = co_now
    try co_delay(.seconds(3_600))
    #expect(co_now - start == .seconds(3_600))
    try co_delay(until: start + .seconds(7_200))
    #expect(worldTime == .seconds(7_200))
    try co_delay(until: start)
    #expect(worldTime == .seconds(7_200))
    #expect(start < co_now && start.duration(to: co_now) == .seconds(7_200))
    #expect(co_now.advanced(by: .seconds(Int64.max)) > co_now)
  }

  @Test(.inWorlds) func `the clock sleeps in a Task of a world`() throws {
    let clock = CoroutineClock()
    let time = try co_await { try await clock.measure { try await clock.sleep(for: .seconds(5)) } }
    #expect(time == .seconds(5) && worldTime == .seconds(5))
  }

  @Test(.tags(.realClock)) func `the clock sleeps in any Task, until that is cancelled`() async throws {
    let start = co_now
    try await CoroutineClock().sleep(for: .milliseconds(2))
    #expect(co_now - start >= .milliseconds(2))
    let task = Task { try await CoroutineClock().sleep(for: .seconds(3_600)) }
    task.cancel()
    let seen = await asyncOutcome { try await task.value }
    #expect(seen == "CancellationError")
  }
}
