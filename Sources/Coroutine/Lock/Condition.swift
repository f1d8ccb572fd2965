import Synchronization

/// Lets coroutines that hold a ``FairMutex`` wait until what the mutex protects has changed as they need it.
///
/// ```swift
/// // a consumer                                    // a producer
/// try lock.withLock {                              try lock.withLock {
///   try notEmpty.wait { !queue.isEmpty }             queue.append(value)
///   use(queue.removeFirst())                         notEmpty.signal()
/// }                                                }
/// ```
///
/// Change what the predicate looks at under the mutex, then signal; then no wake-up is lost. `signal` is for when any one
/// waiter can make use of the change; where they wait for different things, `broadcast`.
public final class Condition: @unchecked Sendable {
  // Sound because the queue is under `lock` and the rest is constant.
  //
  // A queue beside a mutex.
  //
  //   HOLDS the mutex --predicate false--> QUEUED, gives the mutex away, parks
  //   QUEUED --signal, broadcast: unlinked and claimed--> SIGNALLED --takes the mutex back--> HOLDS, looks at the predicate
  //   QUEUED --cancelled--> takes the mutex back all the same, throws
  //
  // Invariants
  //  1. A waiter is queued before it gives the mutex away. So whoever changes the state under the mutex after the waiter has
  //     looked finds the waiter in the queue: no wake-up is lost.
  //  2. It holds the mutex whenever it looks at the predicate, and when it returns or throws, so `withLock` unlocks what it
  //     has locked. Therefore taking the mutex back cannot be cancelled.
  //  3. A signal goes to one waiter that was waiting: `signal` unlinks and claims under the lock. A claim that fails, or is
  //     refused because the waiter is cancelled, costs nothing, and the next in the queue gets the signal.
  //  4. A waiter that was signalled looks at the predicate before it looks at cancellation, so that what the signal was for
  //     is used by who got the signal, though it may have been cancelled since.
  private let mutex: FairMutex
  private let lock = SpinLock()
  @exclusivity(unchecked) private var waiters = WaitQueue()

  /// Creates a condition of what `mutex` protects.
  public init(_ mutex: FairMutex) { self.mutex = mutex }

  /// Returns when `predicate` is true.
  ///
  /// The caller holds the mutex; `predicate` is called with it held, and it is held afterwards, whether this returns or
  /// throws.
  ///
  /// Suspends, with the mutex given away meanwhile, until the predicate is true; it is looked at before the first wait and after
  /// every signal. Cancelled, before or while it waits, it takes the mutex back, which may take as long as others hold it, and
  /// throws. Without the mutex it ends the process; off a coroutine it throws ``CoroutineError/notInCoroutine``.
  public func wait(until predicate: () -> Bool) throws {
    try Carrier.requireJob().1.checkCancelled()
    if !mutex.isHeldByCaller {
      misuse(
        "Condition.wait(until:) needs the mutex that its condition was made with: call it inside withLock of that one."
      )
    }
    while !predicate() { try park() }
  }

  /// Waits for one signal, and takes the mutex back.
  private func park() throws {
    // The predicate is foreign code: where we are is known only now, and an interrupt may have come and gone.
    let (carrier, job) = try Carrier.requireJob()
    try job.checkCancelled()
    defer { mutex.relock() }
    lock.lock()
    var waiter = Waiter(job: job)
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      _ = try WaitQueue.park(carrier, job, .condition) { epoch in
        waiters.append(waiter, epoch)
        lock.unlock()
        mutex.unlock()
      } withdraw: {
        lock.lock()
        waiters.remove(waiter)
        lock.unlock()
      }
    }
  }

  /// Wakes the coroutine that has waited longest, if any waits; it runs when it has the mutex back.
  ///
  /// Call it with the mutex held where the order of events matters. Never suspends; anywhere.
  public func signal() {
    lock.lock()
    var woken: JobRef?
    while woken == nil, let waiter = waiters.popFirst() {
      if let job = waiter.pointee.job, job.claim(waiter.pointee.epoch, waiter.pointee.reason) { woken = job }
    }
    lock.unlock()
    if let woken { Carrier.makeReady(woken) }
  }

  /// Wakes everyone who waits, in the order in which they came.
  ///
  /// Never suspends; anywhere.
  public func broadcast() {
    lock.lock()
    var woken = JobQueue()
    while let waiter = waiters.popFirst() {
      if let job = waiter.pointee.job, job.claim(waiter.pointee.epoch, waiter.pointee.reason) { woken.append(job) }
    }
    lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }
}
