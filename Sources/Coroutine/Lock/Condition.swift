import Synchronization

/// Lets coroutines that hold a ``FairMutex`` wait until the state that the mutex protects fulfils a predicate.
///
/// ```swift
/// // a consumer                                    // a producer
/// try lock.withLock {                              try lock.withLock {
///   try notEmpty.wait { !queue.isEmpty }             queue.append(value)
///   use(queue.removeFirst())                         notEmpty.signal()
/// }                                                }
/// ```
///
/// Change the state that the predicate reads under the mutex, then signal; then no wake-up is lost. Use `signal` if any
/// single waiter can use the change; use `broadcast` if the waiters wait for different predicates.
public final class Condition: @unchecked Sendable {
  // Sound because the queue is accessed under `lock`, and the rest is constant.
  //
  // A wait queue beside a mutex.
  //
  //   HOLDS the mutex --predicate false--> QUEUED, unlocks the mutex, parks
  //   QUEUED --signal, broadcast: unlinked and claimed--> SIGNALLED --locks the mutex--> HOLDS, evaluates the predicate
  //   QUEUED --cancelled--> locks the mutex all the same, throws
  //
  // Invariants
  //  1. A waiter is queued before it unlocks the mutex. So a thread that changes the state under the mutex, after the
  //     waiter has evaluated the predicate, finds the waiter in the queue: no wake-up is lost.
  //  2. The waiter holds the mutex whenever it evaluates the predicate, and when it returns or throws, so `withLock`
  //     unlocks what it has locked. Therefore locking the mutex again cannot be cancelled.
  //  3. A signal goes to one coroutine that was waiting: `signal` unlinks and claims under the lock. A claim that
  //     fails, or is refused because the waiter is cancelled, costs nothing, and the next waiter gets the signal.
  //  4. A signalled waiter evaluates the predicate before it checks cancellation. So the signalled change is used by
  //     the waiter that got the signal, even if it has been cancelled since.
  private let mutex: FairMutex
  private let lock = Shared<SpinLock>()
  @exclusivity(unchecked) private var waiters = WaitQueue()
  // Not shared: only the deinit reads it.
  private let isNamed = Atomic(false)

  /// Creates a condition on the state that `mutex` protects.
  public init(_ mutex: FairMutex) { self.mutex = mutex }

  deinit {
    Inspection.letFinish(self)
    if isNamed.load(ordering: .relaxed) { ObjectNames.remove(self) }
  }

  /// Gives the condition a name, which dumps show: `Condition "not empty" 0x7f…`.
  ///
  /// A second name replaces the first. Any thread; does not suspend.
  /// - Returns: The condition.
  @discardableResult
  public func named(_ name: String) -> Condition {
    ObjectNames.set(name, of: self)
    isNamed.store(true, ordering: .relaxed)
    return self
  }

  /// Waits until `predicate` is true.
  ///
  /// The caller holds the mutex. `predicate` is called with the mutex held, before the first wait and after every
  /// signal. The mutex is also held afterwards, whether this returns or throws.
  ///
  /// Suspends, with the mutex unlocked meanwhile, until the predicate is true. If the coroutine is cancelled, before or
  /// during the wait, it locks the mutex again, which may take as long as others hold it, and throws. If the caller
  /// does not hold the mutex, it traps.
  /// - Throws: The cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func wait(until predicate: () -> Bool) throws {
    _ = try Carrier.beginWaiting()
    if !mutex.isHeldByCaller {
      misuse(
        "Condition.wait(until:) needs the mutex that its condition was made with: call it inside withLock of that one."
      )
    }
    while !predicate() { try park() }
  }

  /// Waits for one signal, and locks the mutex again.
  private func park() throws {
    // The predicate is foreign code: it may have moved the job to another thread, and an interrupt may have come and
    // gone.
    let (carrier, job) = try Carrier.requireJob()
    try job.checkCancelled()
    let holder = mutex.owner.load(ordering: .relaxed)
    defer { mutex.takeBack(for: holder) }
    lock.lock()
    var waiter = Waiter(job: job)
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      _ = try WaitQueue.park(carrier, job, .condition, for: self) { epoch in
        waiters.append(waiter, epoch)
        lock.unlock()
        mutex.giveAway()
      } withdraw: {
        lock.lock()
        waiters.remove(waiter)
        lock.unlock()
      }
    }
  }

  /// Wakes the coroutine that has waited longest, if any; it runs when it has locked the mutex again.
  ///
  /// Call it with the mutex held if the order of events matters. Never suspends; any thread, coroutine or not.
  public func signal() {
    let woken = lock.withLock { waiters.claimFirst() }
    woken?.wake()
  }

  /// Wakes all waiters, in the order in which they started to wait.
  ///
  /// Never suspends; any thread, coroutine or not.
  public func broadcast() {
    var woken = JobQueue()
    lock.withLock { waiters.claimAll(into: &woken) }
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }
}

extension Condition: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { withUnsafePointer(to: lock.known) { $0 } }
  func inspect(_ names: JobNames) -> String { "\(identity) of \(mutex.identity)" }
  func verb(of queue: UInt?) -> String { "wait for" }
}
