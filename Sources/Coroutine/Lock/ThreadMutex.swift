internal import CCoroutine
import Synchronization

/// A value and its lock, for short sections, between threads and coroutines.
///
/// ```swift
/// let sessions = ThreadMutex<[Int: Session]>([:])
/// sessions.withLock { $0[number] = session }       // anywhere, also in a `defer`
/// ```
///
/// A thread that finds it locked blocks, so the section must be short, and must not wait: neither for a channel, a
/// promise or a job, nor for a descriptor or a delay. In a debug build a wait with the lock held ends the process. A
/// section that waits is for ``FairMutex``.
///
/// In a function that waits, `Synchronization.Mutex` is not safe: an optimised build reads the thread's number through
/// an address that it has computed before the wait, for the thread that the function has left. Sections of this class
/// are calls, which are never inlined, so they find the thread that they run on.
///
/// - Any thread, in coroutines, Tasks, handlers and in code that knows of neither. Not in a signal handler.
/// - Not recursive: a section that enters the same lock again ends the process.
/// - Not fair: a thread may take it again before one that has waited.
/// - In a simulated world it never blocks, because a world has one thread, and a section is one step.
/// - In a forked child, a lock that another thread of the parent held at the fork is held for ever: the child ends with
///   a message after two seconds of waiting, or waits for ever if it has begun to use the runtime.
public final class ThreadMutex<Value: ~Copyable>: @unchecked Sendable {
  // Sound because `value` is accessed by the holder of the lock only, and what goes in and out of it is `sending`.
  //
  // Invariants
  //  1. `owner` is the thread pointer of the holder, or 0. Only the holder writes it: after it has taken the lock, and
  //     before it gives it up. So a thread that reads its own thread pointer there holds the lock itself.
  //  2. Nothing of a thread is kept in a variable: `cco_thread_pointer` is read anew at each use (hazards 4 and 18).
  private let lock = Shared<ThreadLock>()
  // Not shared: a caller learns only whether it is the owner itself.
  private let owner = Atomic<UInt>(0)
  @exclusivity(unchecked) private var value: Value

  /// Creates an unlocked lock that protects `value`.
  public init(_ value: consuming sending Value) { self.value = value }

  /// Runs `body` with the value, while no other thread does, and returns its result or throws its error.
  ///
  /// Blocks the calling thread while another one holds the lock; never suspends a coroutine, and knows no cancellation.
  /// `body` must not wait. Traps if the caller holds this lock already.
  @inline(never)
  public func withLock<R, E: Error>(
    _ body: (inout sending Value) throws(E) -> sending R
  ) throws(E) -> sending R {
    if !lock.touched.acquireIfFree() {
      refuseOwner()
      lock.known.acquire()
    }
    begin()
    defer { end() }
    return try body(&value)
  }

  /// Runs `body` as ``withLock(_:)`` if no other thread holds the lock; returns nil, at once, if one does.
  ///
  /// Neither blocks nor suspends. `body` must not wait. Traps if the caller holds this lock already.
  @inline(never)
  public func withLockIfFree<R, E: Error>(
    _ body: (inout sending Value) throws(E) -> sending R
  ) throws(E) -> sending R? {
    if !lock.touched.acquireIfFree() {
      refuseOwner()
      return nil
    }
    begin()
    defer { end() }
    return try body(&value)
  }

  @inline(__always)
  private func begin() {
    owner.store(UInt(bitPattern: cco_thread_pointer()), ordering: .relaxed)
    LockCheck.threadMutexTaken()
  }

  @inline(__always)
  private func end() {
    LockCheck.threadMutexLeft()
    owner.store(0, ordering: .relaxed)
    lock.known.release()
  }

  /// Ends the process if the calling thread holds the lock: it would wait for itself for ever.
  private func refuseOwner() {
    guard owner.load(ordering: .relaxed) == UInt(bitPattern: cco_thread_pointer()) else { return }
    misuse(
      """
      A thread that holds a ThreadMutex locks it again. It is not recursive; and no coroutine may hold it over a wait, in \
      which another one of the same thread could lock it: FairMutex is for sections that wait.
      """
    )
  }
}
