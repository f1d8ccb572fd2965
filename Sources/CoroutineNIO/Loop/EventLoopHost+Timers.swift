#if NIO
import Coroutine
import NIOCore

// The timers of a loop's coroutines. Cancelling a timer of NIO takes linear time. So a timer is never cancelled, and
// may fire without effect. A new one is scheduled only if none fires early enough.

extension EventLoopHost {
  func schedule(_ drain: HostedDrain, after delay: Duration) {
    if state == Word.closed { return scheduleAfterShutdown(drain, TimeAmount(delay)) }
    let deadline = loop.now + TimeAmount(delay)
    // The scheduler computes the delay anew each time, so equal deadlines differ by small amounts.
    if let earliest = timers.last, earliest <= deadline + .microseconds(50) { return }
    timers.append(deadline)
    if state == Word.open { loop.scheduleTask(deadline: deadline) { self.timerArrived(deadline) } }
  }

  func unschedule() {}

  private func timerArrived(_ deadline: NIODeadline) {
    removeTimers(until: deadline)
    if state == Word.closed { return }
    // A loop for tests may be shut down by code that a coroutine's end calls: within this drain, which ends the host.
    let held = drain
    withExtendedLifetime(held) { run { $0.timerFired() } }
  }

  func removeTimers(until deadline: NIODeadline) {
    while let earliest = timers.last, earliest <= deadline { timers.removeLast() }
  }
}
#endif
