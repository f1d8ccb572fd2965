public import CCoroutine

/// The holder of a lock: the coroutine, or, outside a coroutine, the thread.
///
/// A number that is only compared: the object that it stands for may be gone.
@usableFromInline
struct LockOwner: Equatable {
  @usableFromInline let word: UInt

  @inlinable
  init(word: UInt) { self.word = word }

  @inlinable
  init(_ job: JobRef) { word = UInt(bitPattern: job) }

  @inlinable static var nobody: LockOwner { LockOwner(word: 0) }

  /// The caller.
  ///
  /// Coroutines and threads have different words: each word is the address of something that the coroutine or thread
  /// alone owns.
  @inlinable static var current: LockOwner {
    @inline(__always) get {
      if let job = Carrier.current?.pointee.job {
        LockOwner(job)
      } else {
        LockOwner(word: UInt(bitPattern: cco_thread()))
      }
    }
  }
}
