import Dispatch
import Testing

@testable import Coroutine

@Suite(
  "A drain that lingers",
  .timeLimit(.minutes(1)),
  .enabled(if: Processors.usable > 1, "one processor: nobody could send anything")
)
struct IdleSpinTests {
  @Test
  func `it looks after two quick returns in a row, and not before`() {
    var spin = IdleSpin()
    returns(&spin, after: 1_000)
    #expect(spin.returnsWanted == 1)
    returns(&spin, after: 1_000)
    #expect(spin.returnsWanted == 0)
    returns(&spin, after: 1_000_000)
    #expect(spin.returnsWanted == 2, "a slow return starts anew")
  }

  @Test
  func `a drain that only went to the back of its queue counts as no return`() {
    var spin = IdleSpin()
    for now in UInt64(1)...10 { spin.begins(now) }
    #expect(spin.returnsWanted == 2)
  }

  @Test
  func `looks in vain become rarer, up to a bound, and as frequent as before when they pay`() {
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
  func `what is sent to it runs at once, before the blocks that are behind it in the queue`() async throws {
    let queue = DispatchQueue(label: "lingers")
    let order = Trace()
    try await onOwnThread {
      try spin(on: queue)
      queue.async { order("block") }
      try co_launch(on: queue) {
        order("coroutine")
        QueueHost.scheduler(for: queue).idleSpin.patience = 0
      }
      .wait()
      queue.sync {}
    }
    #expect(order.all == ["coroutine", "block"])
  }

  @Test
  func `a timer that is due ends its look, and is fired by the same drain`() async throws {
    let queue = DispatchQueue(label: "lingers for a timer")
    let sleeper = co_launch(on: queue) {
      let scheduler = prepareToLinger(on: queue, for: 90_000_000_000)
      try co_delay(.milliseconds(2))
      scheduler.idleSpin.patience = 0
      return scheduler.idleSpin.needed
    }
    // Without an end at the timer's deadline it would be a minute until this returned.
    #expect(try await sleeper.value == 0, "the look counted as one in vain")
  }

  @Test
  func `it does not look when its slice is over, because other blocks may be waiting`() async throws {
    let queue = DispatchQueue(label: "has lingered")
    // If it looked, it would be a minute until this returned.
    try await onOwnThread {
      try spin(on: queue, until: 0)
      queue.sync {}
    }
  }

  /// Leaves the queue's drain looking at its inbox.
  ///
  /// `end`: of its slice.
  private func spin(on queue: DispatchQueue, for patience: UInt64 = 90_000_000_000, until end: UInt64 = .max) throws {
    try co_launch(on: queue) { _ = prepareToLinger(on: queue, for: patience, until: end) }.wait()
  }

  /// On the queue: the next time there is nothing to do, its drain looks at its inbox.
  private func prepareToLinger(on queue: DispatchQueue, for patience: UInt64, until end: UInt64 = .max) -> Scheduler {
    let scheduler = QueueHost.scheduler(for: queue)
    scheduler.timeSlice.end = end
    scheduler.idleSpin.patience = patience
    scheduler.idleSpin.needed = 0
    return scheduler
  }

  private func returns(_ spin: inout IdleSpin, after pause: UInt64) {
    spin.goesIdle(1_000)
    spin.begins(1_000 + pause)
  }
}
