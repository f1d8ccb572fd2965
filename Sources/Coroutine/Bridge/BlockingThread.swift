internal import CLinux
import CDispatch
import Dispatch
import Synchronization

#if canImport(Glibc)
import Glibc
#else
import Musl
#endif

/// One thread of the pool: serves until the pool has no use for it.
///
/// The list links, `isIdle` and `handed` are guarded by the pool's lock; `current` is the thread's own. The object lives as long as
/// its thread, which holds it; the pool holds it while it is idle.
///
/// A body may end its thread (pthread_exit, pthread_cancel): the C library then drops the frames, without running anything in
/// those of Swift, and calls the destructors of the thread's keys. One of them finds the thread BUSY with `current`, and tells the
/// pool. Cancellation is enabled only while a body runs, so that the pool's own code is never left half-way.
final class BlockingThread: @unchecked Sendable {
  // Sound because of the guards above; `warmer` needs no reference because the one before it in the list is held by the pool.
  @exclusivity(unchecked) var colder: BlockingThread?
  @exclusivity(unchecked) unowned(unsafe) var warmer: BlockingThread?
  @exclusivity(unchecked) var isIdle = false
  /// What an idle thread was given; nil though it is idle no more: it must end.
  @exclusivity(unchecked) var handed: BlockingWork?
  /// The work whose body the thread runs.
  @exclusivity(unchecked) private var current: BlockingWork?
  let wake = DispatchSemaphore(value: 0)

  private let pool: BlockingPool
  private let name: String
  private static let number = Atomic<Int>(0)

  /// More than a body needs that parses documents 200 levels deep in a debug build (420 KiB); touched pages only cost memory.
  static var stackBytes: Int { 1 << 20 }

  init(_ pool: BlockingPool) {
    self.pool = pool
    // A thread's name has 15 bytes.
    name = "co-blocking-\(Self.number.wrappingAdd(1, ordering: .relaxed).oldValue % 1000)"
  }

  private func serve() {
    while let work = pool.next(for: self) {
      current = work
      pthread_setcancelstate(Int32(PTHREAD_CANCEL_ENABLE), nil)
      work.run()
      pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), nil)
      current = nil
    }
    pool.threadWillEnd()
  }

  /// The key whose destructor the C library calls when a body has ended its thread; it holds the thread's object meanwhile.
  private static let key: pthread_key_t = {
    var key = pthread_key_t()
    let code = pthread_key_create(&key) { thread in
      guard let thread else { return }
      Unmanaged<BlockingThread>.fromOpaque(thread).takeRetainedValue().wasEnded()
    }
    precondition(code == 0, "co_blocking: the process has no thread-specific key left (error \(code))")
    return key
  }()

  private func wasEnded() {
    pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), nil)
    if let work = current.take() { pool.threadWasEnded(by: work) }
  }

  /// Starts the thread, detached; 0 or an error number.
  func start() -> Int32 {
    var attributes = pthread_attr_t()
    let code = pthread_attr_init(&attributes)
    guard code == 0 else { return code }
    defer { pthread_attr_destroy(&attributes) }
    pthread_attr_setstacksize(&attributes, Self.stackBytes)
    pthread_attr_setdetachstate(&attributes, Int32(PTHREAD_CREATE_DETACHED))
    return SignalMask.whileBlocked {
      let me = Unmanaged.passRetained(self)
      var thread = pthread_t()
      let code = pthread_create(&thread, &attributes, { BlockingThread.main($0) }, me.toOpaque())
      if code != 0 { me.release() }
      return code
    }
  }

  private static func main(_ argument: UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer? {
    guard let argument else { return nil }
    pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), nil)
    // The key has the reference: frames that are dropped release nothing.
    pthread_setspecific(key, argument)
    let me = Unmanaged<BlockingThread>.fromOpaque(argument)
    me._withUnsafeGuaranteedRef { thread in
      clinux_name_thread(thread.name)
      thread.serve()
    }
    pthread_setspecific(key, nil)
    me.release()
    return nil
  }

  /// Why no thread could be started, in a sentence that says what to do.
  static func refusal(_ code: Int32) -> CoroutineError {
    .outOfStacks(
      "co_blocking could not start its first thread (error \(code)): the process has met a limit on threads or memory; "
        + "raise pids.max of its cgroup, RLIMIT_NPROC (ulimit -u), kernel.threads-max or memory.max, or run fewer processes"
    )
  }
}

/// Which signals a thread of the pool leaves to others.
///
/// As Dispatch does for its workers: all that may be sent to the process as a whole, so that a handler never interrupts a
/// body, and programs that wait for signals on threads of their own get them. Not those that the thread's own instructions
/// raise: blocked, a fault would end the process without the handlers that report it. SIGPIPE counts among them, and so does
/// SIGPROF, without which a profiler would not see these threads.
enum SignalMask {
  static let left: [Int32] = [SIGILL, SIGTRAP, SIGFPE, SIGBUS, SIGSEGV, SIGSYS, SIGPIPE, SIGPROF]

  /// Runs `body` with the pool's mask: a thread inherits it from its creator, so no signal slips in before it is in force.
  static func whileBlocked<Output>(_ body: () -> Output) -> Output {
    var blocked = sigset_t()
    sigfillset(&blocked)
    for signal in left { sigdelset(&blocked, signal) }
    var old = sigset_t()
    pthread_sigmask(SIG_SETMASK, &blocked, &old)
    defer { pthread_sigmask(SIG_SETMASK, &old, nil) }
    return body()
  }
}

/// Threads without work, last in first out: the warm ones work, the cold ones reach the end of their patience.
///
/// All operations are constant time, under the pool's lock.
struct IdleThreads {
  private var warmest: BlockingThread?
  private(set) var count = 0

  mutating func push(_ thread: BlockingThread) {
    thread.isIdle = true
    thread.colder = warmest
    warmest?.warmer = thread
    warmest = thread
    count += 1
  }

  mutating func popWarmest() -> BlockingThread? {
    guard let thread = warmest else { return nil }
    remove(thread)
    return thread
  }

  mutating func remove(_ thread: BlockingThread) {
    thread.isIdle = false
    let colder = thread.colder.take()
    colder?.warmer = thread.warmer
    if let warmer = thread.warmer { warmer.colder = colder } else { warmest = colder }
    thread.warmer = nil
    count -= 1
  }
}
