#if NIO
import Coroutine
import Dispatch
import NIOCore
import Synchronization

// How the scheduler's drains reach the loop's thread, and what follows a drain there.

extension EventLoopHost {
  func submit(_ drain: HostedDrain) {
    let old = word.bitwiseOr(Word.submitted, ordering: .acquiringAndReleasing).oldValue
    switch old & Word.state {
    case Word.closed: successor.async { self.drainAfterShutdown(drain) }
    case Word.closing: pumpWakeUp.signal()
    case Word.open where loop.inEventLoop:
      switch phase {
      case .idle: call(drain)
      case .callback, .afterDrain: break
      case .draining: drainLater()
      }
    default: call(drain)
    }
  }

  private func call(_ drain: HostedDrain) {
    let call = Call(self, drain)
    loop.execute { call.run() }
  }

  /// Makes the submitted drain after the loop has polled its descriptors.
  func drainLater() {
    if isSelectable { pause() } else { call(drain) }
  }

  /// Makes the submitted drain, if it has not been made.
  ///
  /// Called by the loop.
  func drainIfSubmitted() {
    if state == Word.fresh { open() }
    if state != Word.closed, takeSubmitted() {
      run { $0() }
      pumping.hasRun = true
    }
  }

  /// Clears the bit `submitted`; returns whether it was set, and the caller must make the drain.
  func takeSubmitted() -> Bool {
    word.bitwiseAnd(~Word.submitted, ordering: .acquiringAndReleasing).oldValue & Word.submitted != 0
  }

  /// Runs coroutines on the loop's thread, and then reads from and flushes the channels that they have used.
  func run(_ body: (HostedDrain) -> Void) {
    draining(body)
    continueListed()
  }

  /// Lets the channels read and flush that the drain has listed.
  func continueListed() {
    if listed.isEmpty { return }
    // A channel may call back synchronously. What that wakes runs later: if it ran here, its own reads could call back
    // again, and so on, ever deeper.
    during(.afterDrain) {
      while let channel = listed.popLast() {
        channel._withUnsafeGuaranteedRef { $0.continueAfterDrain() }
        channel.release()
      }
    }
    if word.load(ordering: .acquiring) == Word.open | Word.submitted { drainLater() }
  }
}

/// A call that the loop runs, or drops silently.
private final class Call: @unchecked Sendable {
  // Sound because only the loop's thread writes `hasRun`, before it releases the object. The thread of the last release
  // reads it in the deinit.
  private let host: EventLoopHost
  private let drain: HostedDrain
  private var hasRun = false

  init(_ host: EventLoopHost, _ drain: HostedDrain) {
    self.host = host
    self.drain = drain
  }

  func run() {
    hasRun = true
    host.drainIfSubmitted()
  }

  deinit { if !hasRun { host.wasRefused(drain) } }
}
#endif
