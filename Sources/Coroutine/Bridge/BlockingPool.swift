import Dispatch

// The threads of co_blocking: as many as are wanted at once, up to a limit; first come, first served.
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
//  1. `threads` counts those STARTING, BUSY and IDLE. It exceeds `limit` only after the limit was lowered, and then no thread
//     is IDLE.
//  2. Where work is queued, no thread is IDLE, and some thread is STARTING or BUSY. A BUSY thread looks at the queue before
//     it idles or ends, so every queued body is taken in the end.
//  3. Queued work is taken from the front only, and handed-over work was submitted with an empty queue: bodies start in the
//     order in which they were submitted.
//
// 2 holds because of where work enters and threads leave. Entering (submit): an idle thread is handed the work; else it is
// queued, and a thread is started if the limit allows one. If it allows none, `threads` is at least `limit`, which is at
// least 1, and none of them is idle. Leaving: a thread idles with an empty queue only; it ends out of IDLE, where there is
// no queue, or because `threads` exceeds `limit`, so at least `limit` others remain. A thread that its body ends is replaced where
// work is queued (threadWasEnded). The one other way out is a refused start: if that leaves no thread at all, everything queued
// fails with the reason, because nobody else would ever look.
//
// No hand-over is lost: it is written under the lock (the thread leaves the idle list, `handed` is set), and only then is
// the thread signalled. A thread that wakes looks under the lock whether it is still in the list; if it is not, it takes
// what it was handed, whether it was the signal or its patience that woke it. A signal left over is a wake-up for nothing.
//
// Idle threads are used last in first out: the warm ones work, the cold ones reach the end of their patience.

final class BlockingPool: @unchecked Sendable {
  // Sound because everything mutable is under `lock`.

  /// The one that co_blocking uses.
  ///
  /// Its limit is enough for work that waits rather than computes, which is what it is for: Dispatch and Kotlin's IO
  /// dispatcher stop at 64 as well. A thread costs about 20 KiB of memory until its stack is used, so the limit is not there to save memory,
  /// but to keep a burst from meeting the container's limit on processes. Four for each processor on large machines.
  static let shared = BlockingPool(limit: max(64, 4 * Processors.usable))

  /// How things stand.
  struct Counts: Equatable {
    var limit: Int
    var threads: Int
    var idle: Int
    var queued: Int
  }

  /// What tests hear of, outside of the lock.
  enum Event: Sendable {
    case idled
    case ended
  }

  private let lock = SpinLock()
  @exclusivity(unchecked) private var limit: Int
  @exclusivity(unchecked) private var threads = 0
  @exclusivity(unchecked) private var queue = BlockingQueue()
  @exclusivity(unchecked) private var idle = IdleThreads()

  private let patience: DispatchTimeInterval
  private let start: @Sendable (BlockingThread) -> Int32
  private let observe: @Sendable (Event) -> Void

  /// - Parameters:
  ///   - limit: The most threads.
  ///   - patience: How long a thread idles before it ends.
  ///   - start: Starts a thread that serves; 0 or an error number. Tests replace it to refuse.
  ///   - observe: Hears of threads that idle and end. For tests.
  init(
    limit: Int,
    patience: DispatchTimeInterval = .seconds(10),
    start: @escaping @Sendable (BlockingThread) -> Int32 = { $0.start() },
    observe: @escaping @Sendable (Event) -> Void = { _ in }
  ) {
    self.limit = max(1, limit)
    self.patience = patience
    self.start = start
    self.observe = observe
  }

  var counts: Counts {
    lock.withLock { Counts(limit: limit, threads: threads, idle: idle.count, queued: queue.count) }
  }

  // MARK: What coroutines do

  /// Takes work in: hands it to an idle thread, or starts one, or queues it.
  ///
  /// Any thread; waits for nothing, except that the kernel takes some 20 µs to make a thread.
  func submit(_ work: BlockingWork) {
    lock.lock()
    if let thread = idle.popWarmest() {
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

  /// Takes work back; true: it was still queued, no thread will run it.
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
    while threads > self.limit, let thread = idle.popWarmest() {
      threads -= 1
      surplus.append(thread)
    }
    lock.unlock()
    for thread in surplus { thread.wake.signal() }
    for _ in 0..<starting { startCounted() }
  }

  /// Starts a thread that is counted already.
  private func startCounted() {
    let code = start(BlockingThread(self))
    guard code != 0 else { return }
    var orphans: [BlockingWork] = []
    lock.lock()
    threads -= 1
    while threads == 0, let work = queue.popFirst() { orphans.append(work) }
    lock.unlock()
    let error = BlockingThread.refusal(code)
    for work in orphans { work.fail(error) }
  }

  // MARK: What its threads do

  /// The next work for `thread`, for which it waits; nil: it is counted no more and must end.
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
    let end = DispatchTime.now() + patience
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

  /// The body of `work` has ended the thread that ran it, which was BUSY.
  ///
  /// On that thread, after its frames have gone.
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
