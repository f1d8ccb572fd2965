/// A queue of the waiters for one source, first in, first out.
///
/// All operations take constant time, and are called under the source's lock.
@usableFromInline
struct WaitQueue {
  @usableFromInline var first: UnsafeMutablePointer<Waiter>?
  @usableFromInline var last: UnsafeMutablePointer<Waiter>?

  @inlinable init() {}

  @inlinable @inline(__always)
  mutating func append(_ waiter: UnsafeMutablePointer<Waiter>) {
    waiter.pointee.isLinked = true
    waiter.pointee.next = nil
    waiter.pointee.previous = last
    if let last { last.pointee.next = waiter } else { first = waiter }
    last = waiter
  }

  /// Queues a job's waiter for the wait that has just begun.
  @inlinable @inline(__always)
  mutating func append(_ waiter: UnsafeMutablePointer<Waiter>, _ epoch: WaitEpoch) {
    waiter.pointee.epoch = epoch
    append(waiter)
  }

  @inlinable @inline(__always)
  mutating func remove(_ waiter: UnsafeMutablePointer<Waiter>) {
    guard waiter.pointee.isLinked else { return }
    waiter.pointee.isLinked = false
    if let previous = waiter.pointee.previous {
      previous.pointee.next = waiter.pointee.next
    } else {
      first = waiter.pointee.next
    }
    if let next = waiter.pointee.next {
      next.pointee.previous = waiter.pointee.previous
    } else {
      last = waiter.pointee.previous
    }
  }

  @inlinable @inline(__always)
  mutating func popFirst() -> UnsafeMutablePointer<Waiter>? {
    guard let waiter = first else { return nil }
    remove(waiter)
    return waiter
  }

  /// The first waiter for which `isWanted` is true, which stays in the queue.
  func first(where isWanted: (UnsafeMutablePointer<Waiter>) -> Bool) -> UnsafeMutablePointer<Waiter>? {
    var waiter = first
    while let current = waiter, !isWanted(current) { waiter = current.pointee.next }
    return waiter
  }
}

extension WaitQueue {
  /// Takes the first waiter whose wait can still be claimed, and claims it.
  ///
  /// Also unlinks waiters whose wait has ended for another reason, and that have not unlinked themselves yet.
  /// Called under the source's lock.
  @inlinable @inline(__always)
  mutating func claimFirst() -> UnsafeMutablePointer<Waiter>? {
    while let waiter = popFirst() {
      guard let job = waiter.pointee.job else {
        // A callback's waiter is linked as long as it waits. Reason 0 marks that it waits no longer.
        waiter.pointee.reason = 0
        return waiter
      }
      if job.claim(waiter.pointee.epoch, waiter.pointee.reason) { return waiter }
    }
    return nil
  }

  /// Takes the waiters, which are jobs, and appends those whose waits it has claimed.
  ///
  /// Called under the source's lock.
  mutating func claimAll(into woken: inout JobQueue) {
    while let job = claimFirst()?.pointee.job { woken.append(job) }
  }
}

extension WaitQueue {
  /// Suspends the running job until its wait ends.
  ///
  /// Every wait uses this function. A wait has these steps, in this order:
  ///
  ///  1. The caller takes the source's lock and checks the source. If it is ready already, no wait begins.
  ///  2. The wait begins. The epoch that `publish` gets names it.
  ///  3. `publish` makes the epoch known under the lock, usually in a waiter in a queue, and leaves the lock. From here
  ///     on any thread may claim the wait, even before the job has left its stack (Waiter.swift explains why that is
  ///     harmless).
  ///  4. The job parks. It is resumed on its own scheduler, perhaps on another thread.
  ///  5. If a cancellation has claimed the wait, `withdraw` takes the lock and unlinks what `publish` has linked,
  ///     because no other thread has unlinked it. Then this function throws the cancellation's reason. In every other
  ///     case the thread that claimed the wait has unlinked it.
  ///
  /// - Returns: The reason for which the wait ended. It is never `cancelled`.
  ///
  /// It is inlined, as both closures are: each frame between the caller and the switch costs a mispredicted return.
  @inlinable @inline(__always) @discardableResult
  static func park(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    _ kind: WaitKind,
    for source: UInt = 0,
    publish: (WaitEpoch) -> Void,
    withdraw: () -> Void
  ) throws -> UInt8 {
    publish(job.beginWait(kind, for: source))
    let reason = Carrier.park(carrier, job)
    if reason != WakeReason.cancelled { return reason }
    withdraw()
    throw job.cancellation() ?? CancellationError()
  }
  /// Suspends the running job in a wait whose source is an object, as `park` above.
  @inlinable @inline(__always) @discardableResult
  static func park(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    _ kind: WaitKind,
    for source: AnyObject,
    publish: (WaitEpoch) -> Void,
    withdraw: () -> Void
  ) throws -> UInt8 {
    let address = UInt(bitPattern: Unmanaged.passUnretained(source).toOpaque())
    return try park(carrier, job, kind, for: address, publish: publish, withdraw: withdraw)
  }
}
