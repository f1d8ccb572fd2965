internal import CCoroutineRuntime
import Synchronization

// The wait of a Task for a source: a job, a promise, a channel. The source's queue contains this callback, as it
// contains the waiter of a coroutine.
//
//   IDLE --- linked ---> WAITING --- the source unlinks it, because it is ready --------> FIRED
//     |                     +------- the Task is cancelled, and `leave` unlinks it -----> FIRED
//     +--- not linked, because the source is ready already -----------------------------> FIRED
//
// Invariants
//  1. The callback is linked and unlinked under the source's lock. The thread that unlinks it fires it, once, after it
//     has left the lock. So the source's lock decides between an outcome and a cancellation, and no other lock is
//     needed.
//  2. The continuation is set before the callback is linked, so every thread that unlinks it finds the continuation.
//  3. A cancellation that comes before the callback is linked finds nothing to unlink. It has set `isCancelled` before
//     it takes the source's lock, so `wait`, which links under that lock, sees the flag afterwards, and leaves itself.
//     If it sees the flag of a cancellation that takes the lock later, both leave, and one of them unlinks.

/// A Task's wait, once.
@usableFromInline
class TaskWait: WaitCallback, @unchecked Sendable {
  // Sound because of the invariants.
  @exclusivity(unchecked) private final var continuation: UnsafeContinuation<Void, Never>?
  private final let cancelled = Atomic(false)

  /// Whether the Task was cancelled in `wait`.
  final var isCancelled: Bool { cancelled.load(ordering: .relaxed) }

  /// Links the callback, which the queue then retains; returns false if the source is ready.
  func link() -> Bool { false }

  /// Unlinks the callback of a cancelled Task; returns false if it is not linked, or if the Task continues to wait.
  func leave() -> Bool { false }

  /// Suspends the Task until the callback is fired.
  ///
  /// ThreadSanitizer does not see that resuming a continuation happens before the code after the await, so it is told.
  /// It would also report a race between resuming and the await: a continuation that is resumed before its Task
  /// suspends continues without a dispatch.
  final func wait() async {
    await withTaskCancellationHandler {
      await withUnsafeContinuation { continuation in
        self.continuation = continuation
        if !link() || isCancelled && leave() { fire() }
      }
    } onCancel: {
      cancelled.store(true, ordering: .relaxed)
      if leave() { fire() }
    }
    cco_observe(address)
  }

  /// To resume a Task is to call its executor, which may be the program's.
  final override var isForeign: Bool { true }

  @usableFromInline
  final override func fire() {
    cco_publish(address)
    cco_unrecorded_begin()
    continuation?.resume()
    cco_unrecorded_end()
  }

  private final var address: UnsafeRawPointer { UnsafeRawPointer(Unmanaged.passUnretained(self).toOpaque()) }
}
