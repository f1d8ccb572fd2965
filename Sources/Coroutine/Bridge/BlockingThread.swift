internal import CCoroutine
import CDispatch
internal import CLinux
import Dispatch
import Glibc
import Synchronization

/// One thread of the pool: it runs bodies until the pool no longer needs it.
///
/// The pool's lock covers the list links, `isIdle`, `isWaiting` and `handed`. `current` is the thread's own. The thread
/// holds the object for as long as it runs. The pool holds the object while the thread is idle.
///
/// A body may end its thread (pthread_exit, pthread_cancel), also while it is in a wait. The C library then drops the
/// frames, without any cleanup in Swift frames, and calls `wasEnded`, which finds the thread BUSY or WAITING with
/// `current`, and tells the pool. Cancellation is enabled only while a body runs, so that it never interrupts the
/// pool's own code.
final class BlockingThread: LimitedThread, @unchecked Sendable {
  // Sound because of the guards above. `newer` needs no reference because the pool holds the previous thread of the
  // list.
  @exclusivity(unchecked) var older: BlockingThread?
  @exclusivity(unchecked) unowned(unsafe) var newer: BlockingThread?
  @exclusivity(unchecked) var isIdle = false
  /// Whether the body blocks in a wait of the library.
  @exclusivity(unchecked) var isWaiting = false
  /// The work that an idle thread was given; nil means that a thread that is no longer idle must end.
  @exclusivity(unchecked) var handed: BlockingWork?
  /// The work whose body the thread runs, with the only reference that the thread has to it.
  ///
  /// Unmanaged because a body that ends its thread drops the frames: a reference in one of them is never released.
  @exclusivity(unchecked) private var current: Unmanaged<BlockingWork>?
  let wake = DispatchSemaphore(value: 0)

  private let pool: BlockingPool
  private let name: String
  private static let number = Atomic<Int>(0)

  /// A body that parses documents 200 levels deep in a debug build needs 420 KiB; only touched pages cost memory.
  static var stackBytes: Int { 1 << 20 }

  init(_ pool: BlockingPool) {
    self.pool = pool
    // A thread's name has 15 bytes.
    name = "\(pool.threadName)-\(Self.number.wrappingAdd(1, ordering: .relaxed).oldValue % 1000)"
  }

  override func run() {
    clinux_name_thread(name)
    while let work = pool.next(for: self).map(Unmanaged.passRetained) {
      current = work
      pthread_setcancelstate(Int32(PTHREAD_CANCEL_ENABLE), nil)
      work._withUnsafeGuaranteedRef { $0.run() }
      pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), nil)
      current = nil
      work.release()
    }
    pool.threadWillEnd()
  }

  override func willBlock() throws { try pool.beginWait(self) }

  override func hasBlocked() { pool.endWait(self) }

  override func wasEnded() {
    pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), nil)
    let locals = LocalBinding.exchange(nil)
    locals?._withUnsafeGuaranteedRef { $0.leaveTaskLocals() }
    locals?.release()
    if let work = current.take() { pool.threadWasEnded(self, by: work.takeRetainedValue()) }
  }

  /// Starts the thread, detached, and returns 0 or an error number.
  func start() -> Int32 {
    let me = Unmanaged.passRetained(self)
    let code = SignalMask.whileBlocked {
      clinux_start_thread(Self.stackBytes, { BlockingThread.main($0) }, me.toOpaque())
    }
    if code != 0 { me.release() }
    return code
  }

  private static func main(_ argument: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
    guard let argument else { return nil }
    pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), nil)
    LimitedThread.run(argument)
    return nil
  }

  /// Returns the error that says why no thread could be started for a call, and what to do.
  static func refusal(_ code: Int32, _ call: String) -> CoroutineError {
    .outOfStacks(
      "\(call) could not start a thread, and has none that could run its body (error \(code)): the process has met "
        + "a limit on threads or memory; "
        + "raise pids.max of its cgroup, RLIMIT_NPROC (ulimit -u), kernel.threads-max or memory.max, or run fewer processes"
    )
  }
}

/// The threads without work, last in, first out.
///
/// All operations take constant time, under the pool's lock.
struct IdleThreads {
  private var newest: BlockingThread?
  private(set) var count = 0

  mutating func push(_ thread: BlockingThread) {
    thread.isIdle = true
    thread.older = newest
    newest?.newer = thread
    newest = thread
    count += 1
  }

  mutating func popNewest() -> BlockingThread? {
    guard let thread = newest else { return nil }
    remove(thread)
    return thread
  }

  mutating func remove(_ thread: BlockingThread) {
    thread.isIdle = false
    let older = thread.older.take()
    older?.newer = thread.newer
    if let newer = thread.newer { newer.older = older } else { newest = older }
    thread.newer = nil
    count -= 1
  }
}
