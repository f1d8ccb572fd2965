/// A condition variable for the coroutines of one host.
///
/// It has no lock, because one thread, the host's, tests the condition, waits, and wakes. Only that thread may use an
/// object of this type, in its coroutines or outside of them.
///
/// ```swift
/// try HostedWaiters.begin()
/// while queue.isEmpty { try waiters.wait() }
/// ```
///
/// Between `begin` and `wait` no other code runs on the thread, unless the caller itself calls foreign code. So a
/// caller tests its condition after `begin`, and again after foreign code, and then waits: no wake-up is lost. A
/// wake-up does not mean that the condition holds, so a coroutine that returns from `wait` tests it again.
@_spi(Hosting)
public final class HostedWaiters: @unchecked Sendable {
  // Sound because of invariant 1.
  //
  // Invariants
  //  1. Only the host's thread, in its coroutines or outside of them, accesses an object of this type.
  //  2. A waiter is linked from the moment that its coroutine leaves its stack until its wait is claimed. The claim and
  //     the unlinking happen on the host's thread: a wake-up there, or a cancellation, which the host's drain handles.

  @exclusivity(unchecked) private var waiters = WaitQueue()

  /// Creates a list on which no coroutine waits.
  public init() {}

  /// Whether no coroutine waits.
  public var isEmpty: Bool { waiters.first == nil }

  /// Begins an operation that may wait.
  ///
  /// May suspend, if the drain has run for long. Throws the cancellation error, and
  /// ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "call it in a coroutine of the host")
  public static func begin() throws { _ = try Carrier.beginWaiting() }

  /// Suspends the running coroutine until ``wakeAll()`` on the host's thread.
  ///
  /// Throws the cancellation error, also if foreign code has cancelled the coroutine since `begin`.
  @available(*, noasync, message: "call it in a coroutine of the host")
  public func wait() throws {
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
  /// They are enqueued, and run after this call. The time is linear in their number; nothing is allocated.
  public func wakeAll() {
    while let waiter = waiters.claimFirst() { waiter.wake() }
  }
}
