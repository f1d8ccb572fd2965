@_spi(Hosting) import Coroutine
import Dispatch
import Testing

/// A serial queue in the place of a loop.
private final class QueueLoop: CoroutineHost {
  private static let key = DispatchSpecificKey<ObjectIdentifier>()
  let queue = DispatchQueue(label: "coroutine.stress.loop")

  init() { queue.setSpecific(key: Self.key, value: ObjectIdentifier(self)) }

  var coroutineLabel: String { queue.label }
  var isCurrentForCoroutines: Bool { DispatchQueue.getSpecific(key: Self.key) == ObjectIdentifier(self) }
  func submit(_ drain: HostedDrain) { queue.async { drain() } }
  func schedule(_ drain: HostedDrain, after delay: Duration) {
    queue.asyncAfter(deadline: .now() + .nanoseconds(Int(delay / .nanoseconds(1)))) { drain.timerFired() }
  }
  func unschedule() {}
}

/// What the coroutines of one host take, and wait for.
private final class Tokens: @unchecked Sendable {
  // Sound because only the host's queue accesses the properties, in coroutines or outside of them.
  let waiters = HostedWaiters()
  var count = 0
  var isOver = false

  /// Takes a token; returns false when there will be none.
  func take() throws -> Bool {
    while true {
      try HostedWaiters.begin()
      if count > 0 { break }
      if isOver { return false }
      try waiters.wait()
    }
    count -= 1
    return true
  }
}

@Suite("Stress: hosts that run what they wake", .timeLimit(.minutes(10)))
struct HostedStressTests {
  @Test func `no wake-up is lost if the host's own drains race with launches and cancellations`() async throws {
    let stress = Stress()
    let rounds = stress.rounds(20_000)
    let loop = QueueLoop()
    let host = HostedScheduler(loop)
    let tokens = Tokens()
    let (taken, atOnce) = (Census(), Census())
    @Sendable func wake() {
      if host.drain.run(waking: tokens.waiters) { atOnce.change() } else { tokens.waiters.wakeAll() }
    }
    let takers = (0..<8).map { taker in
      co_launch(on: host) {
        while try tokens.take() {
          taken.change()
          if taker % 2 == 0 { try co_yield() }
        }
      }
    }
    try await onThreads(3) { thread in
      var random = stress.random(thread)
      for _ in 0..<rounds {
        loop.queue.async {
          tokens.count += 1
          wake()
        }
        switch Int.random(in: 0..<4, using: &random) {
        case 0:
          // It takes a token, or is cancelled before.
          let extra = co_launch(on: host) { if try tokens.take() { taken.change() } }
          if Bool.random(using: &random) { extra.cancel() }
        // The queue has run everything up to here, so its next call finds the host idle.
        case 1: loop.queue.sync {}
        default: break
        }
      }
    }
    loop.queue.async {
      tokens.isOver = true
      wake()
    }
    for taker in takers { try await taker.value }
    // The takers have left no token, and nobody takes one twice.
    #expect(taken.now == 3 * rounds, "\(stress.replay)")
    #expect(atOnce.now > 0, "\(stress.replay)")
  }
}
