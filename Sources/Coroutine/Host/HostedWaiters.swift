/// Coroutines of one host that wait for something that only the host's thread knows.
///
/// A condition without a lock: it is tested, waited for and signalled on one thread.
///
/// Invariants
///  1. Only the host's thread, in its coroutines or outside of them, accesses an object of this type.
///  2. A waiter is linked from the moment that its coroutine leaves its stack until its wait is claimed. The claim and
///     the unlinking happen on the host's thread: a wake-up there, or a cancellation, which the host's drain handles.
///  3. Between `begin` and `wait` nothing else runs on the thread, unless the caller itself calls foreign code. So a
///     caller tests its condition after `begin`, tests it again after foreign code, and then waits: no wake-up is lost.
///
/// A wake-up carries nothing: whoever returns from `wait` tests the condition again.
package final class HostedWaiters: @unchecked Sendable {
  // Sound because of invariant 1.
  @exclusivity(unchecked) private var waiters = WaitQueue()

  package init() {}

  /// Whether no coroutine waits.
  package var isEmpty: Bool { waiters.first == nil }

  /// Begins an operation that may wait.
  ///
  /// May suspend, if the thread has not been given back for long. Throws the cancellation error;
  /// ``CoroutineError/notInCoroutine`` outside a coroutine.
  package static func begin() throws { _ = try Carrier.beginWaiting() }

  /// Suspends the running coroutine until `wakeAll`.
  ///
  /// Throws the cancellation error: also if foreign code has cancelled the coroutine since `begin`.
  package func wait() throws {
    let (carrier, job) = try Carrier.requireJob()
    try job.checkCancelled()
    var waiter = Waiter(job: job)
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      _ = try WaitQueue.park(carrier, job, .callback) { epoch in
        waiters.append(waiter, epoch)
      } withdraw: {
        waiters.remove(waiter)
      }
    }
  }

  /// Wakes all coroutines that wait, in the order of waiting.
  ///
  /// They are enqueued, and run after this call.
  package func wakeAll() {
    while let waiter = waiters.claimFirst() { waiter.wake() }
  }
}
