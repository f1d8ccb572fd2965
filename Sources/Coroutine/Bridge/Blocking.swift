internal import CCoroutine
import CDispatch
internal import CLinux
import Dispatch
import Glibc
import Synchronization

// co_blocking: its two forms, the pool behind it, the pool's threads, and a body on its way to one of them.

/// Runs blocking code on a thread of a separate pool, and returns its result or throws its error.
///
/// For file access, databases, long computations. Suspends the calling coroutine, never its thread. The end of
/// `body` resumes the coroutine.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/RecipeBoundarySnippets.swift -->
/// ```swift
/// try co_blocking { [descriptor] in
///   var bytes = [UInt8](repeating: 0, count: count)
///   let got = Glibc.read(descriptor, &bytes, count)
///   if got < 0 { throw ErrnoError(errno) }
///   return Array(bytes.prefix(got))
/// }
/// ```
///
/// - If the coroutine is cancelled, the call throws at once. A body that has not started is released by the calling
///   coroutine, and does not run. A running body cannot be stopped: it runs to its end, and what it returns or throws
///   is released on its thread. If that is a descriptor or a handle, which must be closed, use
///   ``co_blocking(onUndelivered:_:)``. If the coroutine was cancelled before the call, `body` does not run.
/// - Bodies start in the order of the calls. The pool has as many threads as are needed at once, up to
///   ``CoroutineRuntime/blockingThreadLimit``; further bodies are queued. A thread ends after ten seconds without work.
///   If no thread can be started, and none is left that could run the body, ``CoroutineError/outOfStacks(_:)`` names
///   the limit.
/// - The current bindings of ``CoroutineLocal`` and of task-locals hold in `body`.
/// - A body returns or throws. If it ends its thread (`pthread_exit`), the process ends with a sentence, because
///   nothing that the body's frames hold could be released.
/// - `body` runs outside any coroutine. It may launch coroutines, but must not wait for them with the suspending verbs,
///   which throw ``CoroutineError/notInCoroutine`` there. Its stack has 8 MiB; a body that overflows it ends the
///   process with a line that says so. Its thread does not receive signals that are sent to the process.
/// - The rounding mode, the locale, the signal mask, the cancellation and the name of the thread, if `body` changes
///   them, are what they were for the next body. All else of the thread stays as `body` leaves it: priority, processors
///   (`sched_setaffinity`), a working folder after `unshare(CLONE_FS)`. A body that changes these changes them back.
/// - `body` may wait with ``Job/blockingWait()`` and ``Promise/blockingWait()``, also for coroutines that call
///   co_blocking. While it waits, its thread does not count towards the limit, so another thread may take its place.
///   Other locks and semaphores keep the thread.
///
/// Throws ``CoroutineError/notInCoroutine`` outside a coroutine.
@discardableResult
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_blocking<Output: Sendable>(_ body: sending @escaping () throws -> Output) throws -> Output {
  try BlockingPool.shared.run(consume body)
}

/// Runs blocking code on a thread of a separate pool as ``co_blocking(_:)`` does, and gives back a value that comes too
/// late.
///
/// ```swift
/// let file = try co_blocking(onUndelivered: { close($0) }) { open(path, O_RDONLY) }
/// ```
///
/// Suspends until `body` has ended. If the coroutine is cancelled, or a deadline passes, the call throws at once, and a
/// running `body` continues.
///
/// - A value that `body` returns goes to one of two receivers, once: the caller, or `onUndelivered`. If the call
///   returns, `onUndelivered` is not called. If it throws, `onUndelivered` is called for every value that `body` still
///   returns, usually after the throw. A body that had not begun does not run, and returns nothing.
/// - `onUndelivered` runs on the blocking thread, directly after `body`, with the same bindings of ``CoroutineLocal``
///   and of task-locals. It may block. It is released on that thread; if the call returns, perhaps a moment later.
/// - An error that `body` throws too late goes to nobody: the caller has its own error, and there is nothing to give
///   back. A body whose late failure matters reports it itself.
///
/// Throws ``CoroutineError/notInCoroutine`` outside a coroutine.
@discardableResult
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_blocking<R: Sendable>(
  onUndelivered: @escaping @Sendable (R) -> Void,
  _ body: consuming @escaping @Sendable () throws -> R
) throws -> R {
  try BlockingPool.shared.run(onUndelivered: onUndelivered, consume body)
}

extension CoroutineRuntime {
  /// The largest number of threads that run the bodies of ``co_blocking(_:)`` at once.
  ///
  /// A thread whose body is in ``Job/blockingWait()`` or ``Promise/blockingWait()`` does not count; when it returns,
  /// there may be more threads than the limit, until one of them ends its body.
  ///
  /// The default is 64, or four for each processor if that is more. May be set at any time, on any thread. Never
  /// suspends. A higher limit starts queued bodies at once. With a lower one, idle threads end, and busy threads end
  /// after their bodies. Less than one counts as one.
  public static var blockingThreadLimit: Int {
    get { BlockingPool.shared.counts.limit }
    set { BlockingPool.shared.setLimit(newValue) }
  }
}

// MARK: The pool

// As many threads as are needed at once, up to a limit; first come, first served. Name lookups and other calls that
// block have pools of the same kind (CoroutineNet's Resolver).
//
// A thread of the pool:
//
//   STARTING --pthread_create--> BUSY <===take / finish===> IDLE --idle for too long, or told to--> ENDED
//       |                        ^|^ |                       |
//       | refused                ||| +-----handed work-------+
//       v                        ||+--- `threads` is above the limit ----> ENDED
//     ENDED            endWait   ||
//                                |v  beginWait
//                              WAITING
//
// A thread is WAITING while its body is in a `blockingWait`. What it waits for may need the pool, so it does not count
// towards the limit meanwhile. Otherwise `limit` bodies that each wait for a coroutine that calls co_blocking would
// keep the pool for ever. Bodies that wait for bodies without end meet the process's own limit on threads.
//
// A thread ends by the return of its function only; Context.cpp ends a process whose body does it otherwise.
//
// Invariants, each true whenever the lock is free
//  1. `threads` counts the threads that are STARTING, BUSY or IDLE, and `waiting` those that are WAITING. `threads`
//     exceeds `limit` only after the limit was lowered or a thread has left its wait, and then no thread is IDLE.
//  2. If work is queued, no thread is IDLE, and some thread is STARTING or BUSY. A BUSY thread checks the queue before
//     it idles or ends, so every queued body is taken in the end; if it becomes WAITING, see below.
//  3. Queued work is taken from the front only, and work is handed over only if the queue is empty: bodies start in the
//     order in which they were submitted.
//
// Why 2 holds. Work enters in `submit`: an idle thread is handed the work. Without one, the work is queued, and a
// thread is started if the limit allows it. If it does not, `threads` is at least `limit`, which is at least 1, and no
// thread is idle. A thread idles only if the queue is empty. A thread ends when it is IDLE, and then there is no queue,
// or because `threads` exceeds `limit`, and then at least `limit` others remain. A thread that becomes WAITING is
// replaced if work is queued (beginWait). The last case is a refused start: if it leaves no thread that is STARTING or
// BUSY, all queued work fails with the reason. A WAITING thread is no reason to keep it: it may wait for that very
// work.
//
// A thread leaves its wait. It continues its body at once, and counts again, whatever the limit says: nothing else ends
// what the body holds. So it may be one too many. With an idle thread, that one ends in its stead (endWait), so that 1
// holds. Without one, every counted thread has a body, and the first of them that ends its body finds `threads` above
// `limit`, and ends, though work may be queued: `limit` threads remain, so 2 holds.
//
// Why no hand-over is lost. Under the lock, the thread leaves `idle` and `handed` is set. Only then is the thread
// signalled. A thread that wakes checks under the lock whether it is still idle. If it is not, it takes `handed`, even
// if a time-out and not the signal woke it. A signal that is left over only causes a needless wake-up.
//
// Idle threads are reused last in, first out, so that the threads that are not needed time out.

package final class BlockingPool: @unchecked Sendable {
  // Sound because everything mutable is under `lock`.

  /// The pool that co_blocking uses.
  ///
  /// Its limit is enough for work that waits rather than computes, its purpose: Dispatch and Kotlin's IO dispatcher
  /// stop at 64 as well. A thread costs about 20 KiB of memory until its stack is used. So the limit does not save
  /// memory: it keeps a burst from reaching the container's limit on processes. Large machines have four threads for
  /// each processor.
  static let shared = {
    let pool = BlockingPool(limit: max(64, 4 * Processors.usable))
    MetricSources.setBlocking {
      let counts = pool.counts
      return (counts.threads + counts.waiting, counts.queued)
    }
    return pool
  }()

  /// The current numbers.
  struct Counts: Equatable {
    var limit: Int
    var threads: Int
    var waiting: Int
    var idle: Int
    var queued: Int
  }

  /// The events that tests observe, outside the lock.
  enum Event: Sendable {
    case idled
    case ended
  }

  private let lock = ThreadLock()
  @exclusivity(unchecked) private var limit: Int
  @exclusivity(unchecked) private var threads = 0
  @exclusivity(unchecked) private var waiting = 0
  @exclusivity(unchecked) private var queue = BlockingQueue()
  @exclusivity(unchecked) private var idle: [BlockingThread] = []
  /// The coroutine that waits for the body of each thread, by the kernel's number of the thread.
  @exclusivity(unchecked) private var askers: [Int32: UInt64] = [:]

  /// The call that the pool serves, for errors, and the beginning of its threads' names.
  private let call: String
  fileprivate let threadName: String
  private let idleTimeout: DispatchTimeInterval
  private let start: @Sendable (BlockingThread) -> Int32
  private let observe: @Sendable (Event) -> Void

  /// - Parameters:
  ///   - limit: The largest number of threads that run bodies.
  ///   - idleTimeout: The time that a thread idles before it ends.
  ///   - start: Starts a thread that serves, and returns 0 or an error number. Tests replace it to refuse.
  ///   - observe: Called when a thread idles and when it ends. For tests.
  init(
    limit: Int,
    idleTimeout: DispatchTimeInterval = .seconds(10),
    call: String = "co_blocking",
    threadName: String = "co-blocking",
    start: @escaping @Sendable (BlockingThread) -> Int32 = { $0.start() },
    observe: @escaping @Sendable (Event) -> Void = { _ in }
  ) {
    self.limit = max(1, limit)
    self.idleTimeout = idleTimeout
    self.call = call
    self.threadName = threadName
    self.start = start
    self.observe = observe
    BlockingPositions.add { [weak self] in self?.positions ?? [:] }
  }

  /// The number of queued bodies whose positions are told: the lock is held for them.
  private static var mostPositions: Int { 256 }

  /// Where the bodies are, by the numbers of their coroutines, for reports; of the queue its first ones.
  private var positions: [UInt64: BlockingPositions.Position] {
    let (queued, running) = lock.withLock {
      var (queued, next): ([UInt64], BlockingWork?) = ([], queue.first)
      while let work = next, queued.count < Self.mostPositions {
        queued.append(work.asker)
        next = work.next
      }
      return (queued, askers)
    }
    var positions: [UInt64: BlockingPositions.Position] = [:]
    for (before, asker) in queued.enumerated() { positions[asker] = .queue(before: before) }
    for (thread, asker) in running { positions[asker] = .thread(thread) }
    return positions
  }

  /// Creates a pool for another call than co_blocking, which is named in its errors and by its threads.
  package convenience init(limit: Int, call: String, threadName: String) {
    self.init(limit: limit, idleTimeout: .seconds(10), call: call, threadName: threadName)
  }

  var counts: Counts {
    lock.withLock {
      Counts(limit: limit, threads: threads, waiting: waiting, idle: idle.count, queued: queue.count)
    }
  }

  /// Suspends the running coroutine until a thread of the pool has run `body`.
  package func run<Output: Sendable>(
    onUndelivered: (@Sendable (Output) -> Void)? = nil,
    _ body: sending @escaping () throws -> Output
  ) throws -> Output {
    let (_, job) = try Carrier.requireJob()
    try job.checkCancelled()
    let host = job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.host }
    // Consumed, so that this frame, while parked, retains no object that the body has released.
    let cell = SuspendCell<Output>(job)
    let work = BlockingBody(
      cell,
      locals: LocalBinding.inherited()?.takeRetainedValue(),
      onUndelivered: onUndelivered,
      consume body
    )
    // A simulated world runs the body itself. If the body was dropped before, the call has no effect.
    let isSimulated = host.takesBlocking(job, { work.run() })
    if !isSimulated { submit(work) }
    return try cell.wait(.blocking) { if isSimulated || withdraw(work) { work.drop() } }.get()
  }

  /// Hands work to an idle thread, or starts a thread, or queues the work.
  ///
  /// Called on any thread. Waits for nothing, except that the kernel takes about 20 µs to create a thread.
  private func submit(_ work: BlockingWork) {
    lock.lock()
    if let thread = idle.popLast() {
      thread.handed = work
      lock.unlock()
      thread.wake.signal()
      return
    }
    queue.append(work)
    let isStarting = threads < limit
    if isStarting { threads += 1 }
    lock.unlock()
    if isStarting { startCounted() }
  }

  /// Takes work back; returns true if it was still queued, and no thread will run it.
  ///
  /// Constant time.
  private func withdraw(_ work: BlockingWork) -> Bool {
    lock.withLock {
      guard work.isQueued else { return false }
      queue.remove(work)
      return true
    }
  }

  func setLimit(_ limit: Int) {
    lock.lock()
    self.limit = max(1, limit)
    let starting = max(0, min(queue.count, self.limit - threads))
    let surplus = idle.suffix(max(0, threads - self.limit))
    idle.removeLast(surplus.count)
    threads += starting - surplus.count
    lock.unlock()
    for thread in surplus { thread.wake.signal() }
    for _ in 0..<starting { startCounted() }
  }

  /// Starts a thread that is already counted.
  private func startCounted() {
    let code = start(BlockingThread(self))
    guard code != 0 else { return }
    var refused: [BlockingWork] = []
    lock.lock()
    threads -= 1
    while threads == 0, let work = queue.popFirst() { refused.append(work) }
    lock.unlock()
    for work in refused {
      work.fail(
        CoroutineError.outOfStacks(
          "\(call) could not start a thread, and has none that could run its body (error \(code)): the process has met "
            + "a limit on threads or memory; raise pids.max of its cgroup, RLIMIT_NPROC (ulimit -u), "
            + "kernel.threads-max or memory.max, or run fewer processes"
        )
      )
    }
  }

  // MARK: For its threads

  /// Waits for the next work of `thread`; returns nil if the thread is no longer counted, and must end.
  fileprivate func next(for thread: BlockingThread) -> BlockingWork? {
    lock.lock()
    askers[thread.number] = nil
    if threads > limit {
      threads -= 1
      lock.unlock()
      return nil
    }
    if let work = queue.popFirst() {
      askers[thread.number] = work.asker
      lock.unlock()
      return work
    }
    idle.append(thread)
    lock.unlock()
    observe(.idled)
    let end = DispatchTime.now() + idleTimeout
    while true {
      let result = thread.wake.wait(timeout: end)
      lock.lock()
      defer { lock.unlock() }
      guard let index = idle.firstIndex(where: { $0 === thread }) else {
        let work = thread.handed.take()
        askers[thread.number] = work?.asker
        return work
      }
      if result == .timedOut {
        idle.remove(at: index)
        threads -= 1
        return nil
      }
    }
  }

  fileprivate func threadWillEnd() { observe(.ended) }

  /// Begins a wait of a BUSY thread, and starts another one if work is queued.
  fileprivate func beginWait() {
    lock.lock()
    waiting += 1
    threads -= 1
    let isReplaced = queue.first != nil && threads < limit
    if isReplaced { threads += 1 }
    lock.unlock()
    if isReplaced { startCounted() }
  }

  /// Ends the wait; the thread continues its body.
  fileprivate func endWait() {
    lock.lock()
    waiting -= 1
    threads += 1
    let surplus = threads > limit ? idle.popLast() : nil
    if surplus != nil { threads -= 1 }
    lock.unlock()
    surplus?.wake.signal()
  }
}

// MARK: - Its threads

/// One thread of a pool: it runs bodies until the pool no longer needs it.
///
/// The thread holds the object for as long as it runs. The pool holds the object while the thread is idle.
final class BlockingThread: LimitedThread, @unchecked Sendable {
  // Sound because the pool's lock covers `handed`.

  /// The work that an idle thread was given; nil means that a thread that is no longer idle must end.
  @exclusivity(unchecked) fileprivate var handed: BlockingWork?
  fileprivate let wake = DispatchSemaphore(value: 0)
  fileprivate let pool: BlockingPool
  /// The kernel's number of the thread; set by it before it asks for its first body, and not read by others.
  @exclusivity(unchecked) fileprivate var number: Int32 = 0
  private let name: String
  private static let number = Atomic<Int>(0)

  /// What a thread of a program has.
  ///
  /// Documents of 511 levels need 1.6 MiB. Only touched pages cost memory.
  private static var stackBytes: Int { 8 << 20 }

  fileprivate init(_ pool: BlockingPool) {
    self.pool = pool
    // A thread's name has 15 bytes.
    name = "\(pool.threadName)-\(Self.number.wrappingAdd(1, ordering: .relaxed).oldValue % 1000)"
  }

  override func beginWait() { pool.beginWait() }
  override func endWait() { pool.endWait() }

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
    // A cancelled thread would drop the frames of its body.
    pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), nil)
    cco_call_to_its_end({ BlockingThread.run($0) }, argument)
    return nil
  }

  private static func run(_ argument: UnsafeMutableRawPointer?) {
    guard let argument else { return }
    Unmanaged<BlockingThread>.fromOpaque(argument).takeRetainedValue().serve()
  }

  private func serve() {
    number = clinux_thread_id()
    name.withCString { clinux_name_thread($0) }
    cco_guard_thread()
    // Inherited from the thread that has started this one, as what a body changes is by the next one.
    cco_reset_floating_point()
    enter()
    while let work = pool.next(for: self) {
      work.run()
      // The next body is another coroutine's, and may compute with what this one has set.
      cco_reset_floating_point()
      // An overflow of that body would be silent if this one has switched the signal stack off.
      cco_restore_signal_stack()
      name.withCString { clinux_reset_thread($0) }
    }
    leave()
    pool.threadWillEnd()
  }
}

// MARK: - Bodies

/// A body in the pool.
///
///   CREATED --submit--> QUEUED --take--> TAKEN        the thread runs it
///                          |-----fail--> TAKEN        no thread could be started; the thread that tried fails it
///                          +--withdraw-> WITHDRAWN    its coroutine was cancelled, and drops it
///
/// Ownership: the pool's lock covers `next`, `previous` and `isQueued`. The thread that made the last transition owns
/// the rest. Transitions are made under that lock. So a body is run, failed or dropped, once.
private class BlockingWork: @unchecked Sendable {
  // Sound because of the ownership above. `previous` needs no reference because the pool holds the work before it in
  // the queue.
  @exclusivity(unchecked) final var next: BlockingWork?
  @exclusivity(unchecked) final unowned(unsafe) var previous: BlockingWork?
  @exclusivity(unchecked) final var isQueued = false

  /// The number of the coroutine that waits.
  let asker: UInt64

  init(_ asker: UInt64) { self.asker = asker }

  /// Runs the body and delivers its outcome.
  ///
  /// Called on a thread of the pool.
  func run() {}
  /// Delivers `error` without running the body.
  func fail(_ error: any Error) {}
}

/// A body and the coroutine that waits for its outcome.
///
/// A value is delivered once. `SuspendCell.resume` decides (OneShot.swift). If it returns `pending`, the coroutine
/// returns the value, whatever happens to it later. If it returns `detached`, the coroutine has thrown, or will throw,
/// and never reads the cell again: the value goes to `onUndelivered`. A third answer is not possible, because only
/// `run` and `fail` resume the cell, and of these one is called, once (BlockingWork). A body that is withdrawn has no
/// value.
private final class BlockingBody<Output: Sendable>: BlockingWork, @unchecked Sendable {
  // Sound because of BlockingWork's ownership.
  private let cell: SuspendCell<Output>
  @exclusivity(unchecked) private var locals: LocalBinding?
  @exclusivity(unchecked) private var body: (() throws -> Output)?
  @exclusivity(unchecked) private var onUndelivered: (@Sendable (Output) -> Void)?

  init(
    _ cell: SuspendCell<Output>,
    locals: LocalBinding?,
    onUndelivered: (@Sendable (Output) -> Void)?,
    _ body: sending @escaping () throws -> Output
  ) {
    self.cell = cell
    self.locals = locals
    self.onUndelivered = onUndelivered
    self.body = body
    super.init(cell.origin.id)
  }

  override func run() {
    let result = outcome()
    // Without a receiver, a value without `onUndelivered` and an error are released here.
    if cell.resume(result) == .detached, case .success(let value) = result, let onUndelivered {
      LocalBinding.bound(locals.take()) { onUndelivered(value) }
    }
    drop()
  }

  override func fail(_ error: any Error) {
    drop()
    _ = cell.resume(.failure(error))
  }

  /// Releases the body, and the objects that it holds, without running it.
  func drop() {
    body = nil
    locals = nil
    onUndelivered = nil
  }

  /// Runs the body.
  ///
  /// On return, the body and its captures have been released: the resumed coroutine finds none of them still held.
  private func outcome() -> Result<Output, any Error> {
    guard let body = body.take() else { return .failure(CoroutineError.abandoned) }
    let locals = onUndelivered == nil ? locals.take() : locals
    return LocalBinding.bound(locals) { Result { try body() } }
  }
}

/// The bodies that wait for a thread, first in first out.
///
/// All operations take constant time, under the pool's lock.
private struct BlockingQueue {
  private(set) var first: BlockingWork?
  private var last: BlockingWork?
  private(set) var count = 0

  mutating func append(_ work: BlockingWork) {
    work.isQueued = true
    work.previous = last
    if let last { last.next = work } else { first = work }
    last = work
    count += 1
  }

  mutating func popFirst() -> BlockingWork? {
    guard let work = first else { return nil }
    remove(work)
    return work
  }

  mutating func remove(_ work: BlockingWork) {
    work.isQueued = false
    let next = work.next.take()
    if let next { next.previous = work.previous } else { last = work.previous }
    if let previous = work.previous { previous.next = next } else { first = next }
    work.previous = nil
    count -= 1
  }
}
