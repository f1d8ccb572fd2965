#if NIO
@_spi(Hosting) import Coroutine
import NIOCore
import Synchronization

// The callbacks of a loop's channels.
//
// Why a woken coroutine runs in the same tick. A coroutine that is woken on the loop's thread, outside a drain, runs in
// one of two places:
// - in a call of `execute`, which NIO runs before it waits for events again;
// - at the end of the channel callback that has woken it. Then it requests its next read before NIO removes its
//   interest in the descriptor, which saves two system calls a request.

extension EventLoopHost {
  /// Runs a callback of a channel on the loop's thread, and then the coroutines that it has woken.
  ///
  /// If the callback is called by a coroutine, or by another callback, what it wakes is run by the drain, or at the end
  /// of the outer callback.
  @inline(__always)
  func inCallback(_ body: () -> Void) {
    if phase != .idle || HostedDrain.isInside || state != Word.open { return body() }
    during(.callback, body)
    // In a pause, other channels come first.
    if !isPausing, takeSubmitted() { run { $0() } }
  }

  /// Wakes the coroutines that wait in `waiters`: at the end of a channel's callback.
  ///
  /// Usually they run within this call. If the loop runs coroutines, another callback, or pauses, they run later, as in
  /// `inCallback`.
  func wake(_ waiters: HostedWaiters) {
    let mayRun = phase == .idle && !isPausing && state == Word.open
    if mayRun, draining({ $0.run(waking: waiters) }) { return continueListed() }
    inCallback { waiters.wakeAll() }
  }

  /// Makes `run` call the channel's `continueAfterDrain` after the current drain.
  ///
  /// A coroutine that was started immediately may be outside any drain.
  func continueLater(_ channel: ChannelCore) {
    listed.append(.passRetained(channel))
    if phase != .draining { loop.execute { self.continueListed() } }
  }
}
#endif
