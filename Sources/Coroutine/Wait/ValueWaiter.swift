/// A place in a queue whose waiters carry something: a node, and where that lies.
///
/// In a channel it is the value that is waited for, or offered, an `Element?`; in a select's case, the words of
/// its node.
///
/// The node comes first, so that a pointer to it is a pointer to the whole. Both lie on the waiting stack. Who may touch what:
///
///   node, isClosed   under the place's lock, or whoever has claimed the wait and has not woken the job yet
///   slot             its own job until the node is linked and after the job is woken; in between whoever has claimed it,
///                    and who only reads, whoever holds the lock
@usableFromInline
struct ValueWaiter {
  @usableFromInline var waiter: Waiter
  @usableFromInline var slot: UnsafeMutableRawPointer
  /// The wait was ended by a close, not by a value.
  @usableFromInline var isClosed = false

  @inlinable @inline(__always)
  init(_ waiter: Waiter, slot: UnsafeMutableRawPointer) {
    self.waiter = waiter
    self.slot = slot
  }
}

extension UnsafeMutablePointer<ValueWaiter> {
  /// Its waiter, which comes first.
  @inlinable
  var waiter: UnsafeMutablePointer<Waiter> {
    @inline(__always) get { UnsafeMutableRawPointer(self).assumingMemoryBound(to: Waiter.self) }
  }
}

extension UnsafeMutablePointer<Waiter> {
  /// The whole of a node that a job has queued in a place whose nodes all have slots.
  @inlinable
  var valueWaiter: UnsafeMutablePointer<ValueWaiter> {
    @inline(__always) get { UnsafeMutableRawPointer(self).assumingMemoryBound(to: ValueWaiter.self) }
  }

  /// Wakes whoever waits here.
  ///
  /// The caller has claimed the wait and holds no lock.
  @inlinable @inline(__always)
  func wake() {
    if let job = pointee.job { Carrier.makeReady(job) } else { fireCallback() }
  }

  @usableFromInline @inline(never)
  func fireCallback() { pointee.callback.takeRetainedValue().fire() }
}
