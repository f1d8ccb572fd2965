public import CCoroutine

/// Who holds a lock: the coroutine, or the thread where there is none.
///
/// A number that is compared and nothing else: what it stood for may be gone.
@usableFromInline
struct LockOwner: Equatable {
  @usableFromInline let word: UInt

  @inlinable
  init(word: UInt) { self.word = word }

  @inlinable
  init(_ job: JobRef) { word = UInt(bitPattern: job) }

  @inlinable static var nobody: LockOwner { LockOwner(word: 0) }

  /// Whoever calls.
  ///
  /// Coroutines and threads have different words: each is the address of something that it alone owns.
  @inlinable static var current: LockOwner {
    @inline(__always) get {
      if let job = Carrier.current?.pointee.job { LockOwner(job) } else { LockOwner(word: UInt(bitPattern: cco_thread())) }
    }
  }
}
