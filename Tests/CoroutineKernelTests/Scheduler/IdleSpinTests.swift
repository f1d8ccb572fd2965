import Dispatch
import Testing

@testable import Coroutine

@Suite(
  "Idle spin",
  .timeLimit(.minutes(10)),
  .enabled(if: Processors.usable > 1, "one processor: nobody could send anything")
)
struct IdleSpinTests {
  @Test
  func `it polls after two quick returns in a row, and not before`() {
    var spin = IdleSpin()
    returns(&spin, after: 1_000)
    #expect(spin.returnsWanted == 1)
    returns(&spin, after: 1_000)
    #expect(spin.returnsWanted == 0)
    returns(&spin, after: 1_000_000)
    #expect(spin.returnsWanted == 2, "a slow return starts anew")
  }

  @Test
  func `a drain that only went to the back of its queue does not count as a return`() {
    var spin = IdleSpin()
    for now in UInt64(1)...10 { spin.begins(now) }
    #expect(spin.returnsWanted == 2)
  }

  @Test
  func `unsuccessful polls become rarer, up to a bound, and as frequent as before when they succeed`() {
    var spin = IdleSpin()
    for wanted in [4, 8, 16, 32, 64, 128, 128] {
      spin.failed()
      #expect(spin.returnsWanted == wanted)
    }
    for _ in 1..<IdleSpin.streak { spin.succeeded() }
    #expect(spin.returnsWanted == 128, "once or twice may be luck")
    spin.succeeded()
    #expect(spin.returnsWanted == 2)
  }

  @Test
  func `a message sent during a poll is handled at once, before later blocks of the queue`() async throws {
    let queue = DispatchQueue(label: "spins")
    let order = Trace()
    try await onOwnThread {
      try spin(on: queue)
      queue.async { order("block") }
      try co_launch(on: queue) {
        order("coroutine")
        QueueHost.scheduler(for: queue).idleSpin.duration = 0
      }
      .blockingWait()
      queue.sync {}
    }
    #expect(order.all == ["coroutine", "block"])
  }

  // A drain polls for real time before it goes idle.
  @Test(.tags(.realClock))
  func `a due timer ends the poll, and is fired by the same drain`() async throws {
    let queue = DispatchQueue(label: "spins for a timer")
    let sleeper = co_launch(on: queue) {
      let scheduler = prepareToSpin(on: queue, for: 90_000_000_000)
      try co_delay(.milliseconds(2))
      scheduler.idleSpin.duration = 0
      return scheduler.idleSpin.needed
    }
    // If the poll did not end at the timer's deadline, this would return after a minute.
    #expect(try await sleeper.value == 0, "the look counted as one in vain")
  }

  @Test
  func `it does not poll after its time slice, because other blocks may be waiting`() async throws {
    let queue = DispatchQueue(label: "has lingered")
    // If it polled, this would return after a minute.
    try await onOwnThread {
      try spin(on: queue, until: 0)
      queue.sync {}
    }
  }

  /// Makes the queue's drain poll its inbox.
  ///
  /// `end` is the end of its time slice.
  private func spin(on queue: DispatchQueue, for duration: UInt64 = 90_000_000_000, until end: UInt64 = .max) throws {
    try co_launch(on: queue) { _ = prepareToSpin(on: queue, for: duration, until: end) }.blockingWait()
  }

  /// Called on the queue: when it next has nothing to do, its drain polls its inbox.
  private func prepareToSpin(on queue: DispatchQueue, for duration: UInt64, until end: UInt64 = .max) -> Scheduler {
    let scheduler = QueueHost.scheduler(for: queue)
    scheduler.timeSlice.end = end
    scheduler.idleSpin.duration = duration
    scheduler.idleSpin.needed = 0
    return scheduler
  }

  private func returns(_ spin: inout IdleSpin, after pause: UInt64) {
    spin.goesIdle(1_000)
    spin.begins(1_000 + pause)
  }
}
