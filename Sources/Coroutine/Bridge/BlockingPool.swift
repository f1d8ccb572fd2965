import Dispatch

// The threads of co_blocking: as many as are needed at once, up to a limit; first come, first served.
//
// A thread of the pool:
//
//   STARTING --pthread_create--> BUSY <===take / finish===> IDLE --idle for too long, or told to--> ENDED
//       |                         |  ^                       |
//       | refused                 |  +-----handed work-------+
//       v                         +---- the limit was lowered ----> ENDED
//     ENDED                   +---- the body ended the thread ----> ENDED
//
// Invariants, each true whenever the lock is free
//  1. `threads` counts the threads that are STARTING, BUSY or IDLE. It exceeds `limit` only after the limit was
//     lowered, and then no thread is IDLE.
//  2. If work is queued, no thread is IDLE, and some thread is STARTING or BUSY. A BUSY thread checks the queue before
//     it idles or ends, so every queued body is taken in the end.
//  3. Queued work is taken from the front only, and work is handed over only if the queue is empty: bodies start in the
//     order in which they were submitted.
//
// Why 2 holds. Work enters in `submit`: an idle thread is handed the work. Without one, the work is queued, and a
// thread is started if the limit allows it. If it does not, `threads` is at least `limit`, which is at least 1, and no
// thread is idle. A thread idles only if the queue is empty. A thread ends when it is IDLE, and then there is no queue,
// or because `threads` exceeds `limit`, and then at least `limit` others remain. A thread that its body ends is
// replaced if work is queued (threadWasEnded). The last case is a refused start: if it leaves no thread at all, all
// queued work fails with the reason, because no thread would ever take it.
//
// Why no hand-over is lost. Under the lock, the thread leaves the idle list and `handed` is set. Only then is the
// thread signalled. A thread that wakes checks under the lock whether it is still in the list. If it is not, it takes
// `handed`, even if a time-out and not the signal woke it. A signal that is left over only causes a needless wake-up.
//
// Idle threads are reused last in, first out, so that the threads that are not needed time out.

final class BlockingPool: @unchecked Sendable {
  // Sound because everything mutable is under `lock`.

  /// The pool that co_blocking uses.
  ///
  /// Its limit is enough for work that waits rather than computes, its purpose: Dispatch and Kotlin's IO dispatcher
  /// stop at 64 as well. A thread costs about 20 KiB of memory until its stack is used. So the limit does not save
  /// memory: it keeps a burst from reaching the container's limit on processes. Large machines have four threads for
  /// each processor.
  static let shared = BlockingPool(limit: max(64, 4 * Processors.usable))

  /// The current numbers.
  struct Counts: Equatable {
    var limit: Int
    var threads: Int
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
  @exclusivity(unchecked) private var queue = BlockingQueue()
  @exclusivity(unchecked) private var idle = IdleThreads()

  private let idleTimeout: DispatchTimeInterval
  private let start: @Sendable (BlockingThread) -> Int32
  private let observe: @Sendable (Event) -> Void

  /// - Parameters:
  ///   - limit: The largest number of threads.
  ///   - idleTimeout: The time that a thread idles before it ends.
  ///   - start: Starts a thread that serves, and returns 0 or an error number. Tests replace it to refuse.
  ///   - observe: Called when a thread idles and when it ends. For tests.
  init(
    limit: Int,
    idleTimeout: DispatchTimeInterval = .seconds(10),
    start: @escaping @Sendable (BlockingThread) -> Int32 = { $0.start() },
    observe: @escaping @Sendable (Event) -> Void = { _ in }
  ) {
    self.limit = max(1, limit)
    self.idleTimeout = idleTimeout
    self.start = start
    self.observe = observe
  }

  var counts: Counts {
    lock.withLock { Counts(limit: limit, threads: threads, idle: idle.count, queued: queue.count) }
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
    let error = BlockingThread.refusal(code)
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

  /// Handles the end of a BUSY thread by the body of `work`.
  ///
  /// Called on that thread, after its frames have gone.
  func threadWasEnded(by work: BlockingWork) {
    lock.lock()
    threads -= 1
    let isReplaced = queue.first != nil && threads < limit
    if isReplaced { threads += 1 }
    lock.unlock()
    if isReplaced { startCounted() }
    work.fail(BlockingThreadEnded())
    observe(.ended)
  }
}
