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
    @inline(__always) get { LockOwner(Turn.current) }
  }

  /// Whoever runs on the calling thread's innermost turn.
  @inlinable @inline(__always)
  init(_ turn: UnsafeMutablePointer<Turn>?) {
    if let job = turn?.pointee.job { self.init(job) } else { self.init(word: UInt(bitPattern: cco_thread())) }
  }
}
