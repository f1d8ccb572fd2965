/// A waiter with the address of a value: an awaited or offered `Element?` in a channel, a number in a queue of permits.
///
/// The waiter comes first, so that a pointer to it is a pointer to the whole. Waiter and value are on the waiting
/// stack; a large value of a select is in memory of its own. Access:
///
///   waiter, isClosed   under the source's lock, or by the thread that has claimed the wait and not yet woken the job
///   storage            by its own job until the waiter is linked and after the job is woken; in between by the thread
///                      that has claimed the wait, and for reading by the holder of the lock
@usableFromInline
struct ValueWaiter {
  @usableFromInline var waiter: Waiter
  @usableFromInline var storage: UnsafeMutableRawPointer
  /// Whether a close has ended the wait, and not a value.
  @usableFromInline var isClosed = false

  @inlinable @inline(__always)
  init(_ waiter: Waiter, storage: UnsafeMutableRawPointer) {
    self.waiter = waiter
    self.storage = storage
  }
}

extension UnsafeMutablePointer<ValueWaiter> {
  /// The waiter, which is the first field.
  @inlinable
  var waiter: UnsafeMutablePointer<Waiter> {
    @inline(__always) get { UnsafeMutableRawPointer(self).assumingMemoryBound(to: Waiter.self) }
  }
}

extension UnsafeMutablePointer<Waiter> {
  /// The ValueWaiter of a waiter that a job has queued in a source whose waiters all have storage.
  @inlinable
  var valueWaiter: UnsafeMutablePointer<ValueWaiter> {
    @inline(__always) get { UnsafeMutableRawPointer(self).assumingMemoryBound(to: ValueWaiter.self) }
  }
}
