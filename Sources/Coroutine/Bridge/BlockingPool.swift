import Dispatch

// The threads of co_blocking: as many as are needed at once, up to a limit; first come, first served. Name lookups have
// a pool of the same kind (CoroutineNet's Resolver).
//
// A thread of the pool:
//
//   STARTING --pthread_create--> BUSY <===take / finish===> IDLE --idle for too long, or told to--> ENDED
//       |                        ^|^ |                       |
//       | refused                ||| +-----handed work-------+
//       v                        ||+--- `threads` is above the limit ----> ENDED
//     ENDED          hasBlocked  ||---- the body ended the thread -------> ENDED
//                                |v  willBlock
//                              WAITING ---- ended in its wait -----------> ENDED
//
// A thread is WAITING while its body blocks in a wait of the library (ThreadWait.swift). What it waits for may need the
// pool, so it does not count towards the limit meanwhile. Otherwise `limit` bodies that each wait for a coroutine that
// calls co_blocking would keep the pool for ever.
//
// Invariants, each true whenever the lock is free
//  1. `threads` counts the threads that are STARTING, BUSY or IDLE, and `waiting` those that are WAITING. `threads`
//     exceeds `limit` only after the limit was lowered or a thread has left its wait, and then no thread is IDLE.
//  2. If work is queued, no thread is IDLE, and some thread is STARTING or BUSY. A BUSY thread checks the queue before
//     it idles or ends, so every queued body is taken in the end; if it becomes WAITING, see below.
//  3. Queued work is taken from the front only, and work is handed over only if the queue is empty: bodies start in the
//     order in which they were submitted.
//  4. `waiting` is at most `waitingLimit`. A thread is started only if `threads` is below `limit` before. So there are
//     never more than limit + waitingLimit threads, whatever they do.
//
// Why 2 holds. Work enters in `submit`: an idle thread is handed the work. Without one, the work is queued, and a
// thread is started if the limit allows it. If it does not, `threads` is at least `limit`, which is at least 1, and no
// thread is idle. A thread idles only if the queue is empty. A thread ends when it is IDLE, and then there is no queue,
// or because `threads` exceeds `limit`, and then at least `limit` others remain. A thread that its body ends is
// replaced if work is queued (threadWasEnded). A thread that becomes WAITING is replaced in the same way (beginWait).
// The last case is a refused start: if it leaves no thread that is STARTING or BUSY, all queued work fails with the
// reason. A WAITING thread is no reason to keep it: it may wait for that very work.
//
// A thread leaves its wait. It continues its body at once, and counts again, whatever the limit says: nothing else ends
// what the body holds. So it may be one too many.
//   - With an idle thread, that one ends in its stead (endWait), so that 1 holds.
//   - Without one, every counted thread has a body. The first of them that ends its body finds `threads` above `limit`,
//     and ends, though work may be queued: `limit` threads remain, so 2 holds.
//   - The wait ends before its replacement has been created: the replacement counts as STARTING, which is the same.
//   - The wait ends before the thread has blocked: beginWait and endWait follow each other on one thread, and each of
//     them is one step under the lock.
//   - Many waits end at once: each adds one, and each excess thread ends after its body. By 4 they are at most
//     `waitingLimit`.
//
// Why no hand-over is lost. Under the lock, the thread leaves the idle list and `handed` is set. Only then is the
// thread signalled. A thread that wakes checks under the lock whether it is still in the list. If it is not, it takes
// `handed`, even if a time-out and not the signal woke it. A signal that is left over only causes a needless wake-up.
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

  /// The number of threads of a pool that may block in waits of the library at once.
  ///
  /// Above any use that is not an endless recursion, and below the limits that systems set: together with their stacks
  /// they hold about 30 MiB.
  static var waitingLimit: Int { 1_024 }

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
  @exclusivity(unchecked) private var idle = IdleThreads()

  /// The call that the pool serves, for errors, and the beginning of its threads' names.
  let call: String
  let threadName: String
  private let waitingLimit: Int
  private let idleTimeout: DispatchTimeInterval
  private let start: @Sendable (BlockingThread) -> Int32
  private let observe: @Sendable (Event) -> Void

  /// - Parameters:
  ///   - limit: The largest number of threads that run bodies.
  ///   - waitingLimit: The largest number of threads that block in waits of the library.
  ///   - idleTimeout: The time that a thread idles before it ends.
  ///   - start: Starts a thread that serves, and returns 0 or an error number. Tests replace it to refuse.
  ///   - observe: Called when a thread idles and when it ends. For tests.
  init(
    limit: Int,
    waitingLimit: Int = BlockingPool.waitingLimit,
    idleTimeout: DispatchTimeInterval = .seconds(10),
    call: String = "co_blocking",
    threadName: String = "co-blocking",
    start: @escaping @Sendable (BlockingThread) -> Int32 = { $0.start() },
    observe: @escaping @Sendable (Event) -> Void = { _ in }
  ) {
    self.limit = max(1, limit)
    self.waitingLimit = waitingLimit
    self.idleTimeout = idleTimeout
    self.call = call
    self.threadName = threadName
    self.start = start
    self.observe = observe
  }

  /// Creates a pool for another call than co_blocking, which is named in its errors and by its threads.
  package convenience init(limit: Int, call: String, threadName: String) {
    self.init(limit: limit, waitingLimit: Self.waitingLimit, call: call, threadName: threadName)
  }

  var counts: Counts {
    lock.withLock {
      Counts(limit: limit, threads: threads, waiting: waiting, idle: idle.count, queued: queue.count)
    }
  }

  // MARK: For coroutines

  /// Hands work to an idle thread, or starts a thread, or queues the work.
  ///
  /// Called on any thread. Waits for nothing, except that the kernel takes about 20 µs to create a thread.
  func submit(_ work: BlockingWork) {
    lock.lock()
    if let thread = idle.popNewest() {
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
  func withdraw(_ work: BlockingWork) -> Bool {
    lock.lock()
    defer { lock.unlock() }
    guard work.isQueued else { return false }
    queue.remove(work)
    return true
  }

  func setLimit(_ limit: Int) {
    var surplus: [BlockingThread] = []
    lock.lock()
    self.limit = max(1, limit)
    let starting = max(0, min(queue.count, self.limit - threads))
    threads += starting
    while threads > self.limit, let thread = idle.popNewest() {
      threads -= 1
      surplus.append(thread)
    }
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
    let error = BlockingThread.refusal(code, call)
    for work in refused { work.fail(error) }
  }

  // MARK: For threads

  /// Waits for the next work of `thread`; returns nil if the thread is no longer counted, and must end.
  func next(for thread: BlockingThread) -> BlockingWork? {
    lock.lock()
    if threads > limit {
      threads -= 1
      lock.unlock()
      return nil
    }
    if let work = queue.popFirst() {
      lock.unlock()
      return work
    }
    idle.push(thread)
    lock.unlock()
    observe(.idled)
    return waitIdle(thread)
  }

  private func waitIdle(_ thread: BlockingThread) -> BlockingWork? {
    let end = DispatchTime.now() + idleTimeout
    while true {
      let result = thread.wake.wait(timeout: end)
      lock.lock()
      defer { lock.unlock() }
      guard thread.isIdle else { return thread.handed.take() }
      if result == .timedOut {
        idle.remove(thread)
        threads -= 1
        return nil
      }
    }
  }

  func threadWillEnd() { observe(.ended) }

  /// Begins a wait of a BUSY thread, and starts another one if work is queued.
  ///
  /// Throws if too many threads wait. Called on that thread, as is `endWait`.
  func beginWait(_ thread: BlockingThread) throws {
    lock.lock()
    guard waiting < waitingLimit else {
      lock.unlock()
      throw CoroutineError.tooManyBlockedThreads(waitingLimit)
    }
    thread.isWaiting = true
    waiting += 1
    threads -= 1
    let isReplaced = takesReplacement()
    lock.unlock()
    if isReplaced { startCounted() }
  }

  /// Ends the wait; the thread continues its body.
  func endWait(_ thread: BlockingThread) {
    lock.lock()
    thread.isWaiting = false
    waiting -= 1
    threads += 1
    let surplus = threads > limit ? idle.popNewest() : nil
    if surplus != nil { threads -= 1 }
    lock.unlock()
    surplus?.wake.signal()
  }

  /// Handles the end of a BUSY or WAITING thread by the body of `work`.
  ///
  /// Called on that thread, after its frames have gone.
  func threadWasEnded(_ thread: BlockingThread, by work: BlockingWork) {
    lock.lock()
    if thread.isWaiting { waiting -= 1 } else { threads -= 1 }
    let isReplaced = takesReplacement()
    lock.unlock()
    if isReplaced { startCounted() }
    work.fail(CoroutineError.blockingThreadEnded)
    observe(.ended)
  }

  /// Counts a thread that is to be started because another one has just been discounted; called under the lock.
  private func takesReplacement() -> Bool {
    guard queue.first != nil, threads < limit else { return false }
    threads += 1
    return true
  }
}
