import Synchronization

// The handlers (then, finally, tap ...) that are bound to one worker of the shared scheduler: first in, first out, one at a time.
//
// As a rule the drain of the worker runs them. Where a job keeps that worker for long, the watchdog asks a worker that has nothing to
// do to run them in its place (Watchdog.swift). Handlers are not moved: the whole queue changes its runner. So there is one order,
// that of appending, and one handler of the queue at a time, whoever runs it.
//
//            append                        run                        the last has returned
//   EMPTY ------------> READY ----------------------------> RUNNING ------------------------> EMPTY
//                         ^                                    |
//                         +--- there are more than it took on -+
//
// `isReady` is true in READY only. Everything changes under `lock`; no handler runs under it.
//
// One runner. `run` goes on only in READY, and leaves it, under the lock: of a drain and its helper one gets in.
//
// No handler is left behind. Whoever brings the queue to READY sees to it that the worker's drain looks: on the worker's own turn it
// is the drain that looks before it goes idle; from elsewhere it sends the drain a tick (TimerSource.swift), after `isReady` is set. In
// READY that has been done by whoever brought it there; in RUNNING the runner looks once more before it leaves, and if it is not
// the worker's own drain it sends the tick.
//
// The order of registration. The handlers that coroutines of the shared scheduler attach to one promise or job go to one worker,
// that of the first (Completion.workerOfHandlers): a coroutine may be on another worker when it attaches the next one. They are sent in
// the order of attaching (Completion.swift), so they are appended, and run, in that order.
//
// A worker lives for ever, so what waits here holds neither the scheduler nor its queue.

final class HandlerQueue: @unchecked Sendable {
  // Sound because everything mutable is under `lock`, and `isReady` is atomic.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var waiting = WorkQueue()
  @exclusivity(unchecked) private var isRunning = false
  private let ready = Atomic<Bool>(false)

  init() {}

  /// Whether there are handlers that nobody runs: one plain load.
  var isReady: Bool { ready.load(ordering: .relaxed) }

  /// Returns whether that has made the queue ready, so that the worker's drain must look.
  func append(_ message: Inbox.Message) -> Bool {
    lock.lock()
    defer { lock.unlock() }
    waiting.append(message)
    if isRunning || isReady { return false }
    ready.store(true, ordering: .relaxed)
    return true
  }

  /// Runs the handlers that are there now, unless somebody does; returns how many, and whether there are more by then.
  ///
  /// Those that come meanwhile wait for the runner's next look at its clock.
  func run() -> (count: Int, isReady: Bool) {
    lock.lock()
    guard !isRunning, !waiting.isEmpty else {
      lock.unlock()
      return (0, false)
    }
    isRunning = true
    ready.store(false, ordering: .relaxed)
    let count = waiting.count
    for _ in 0..<count {
      let next = waiting.popFirst()
      lock.unlock()
      if case .work(let item) = next { item.run() }
      lock.lock()
    }
    isRunning = false
    let hasMore = !waiting.isEmpty
    ready.store(hasMore, ordering: .relaxed)
    lock.unlock()
    return (count, hasMore)
  }

  /// What a watchdog compares: the first handler, if nobody runs any.
  var next: UInt { lock.withLock { isRunning ? 0 : waiting.next } }
}

extension Scheduler {
  /// Whether handlers of this worker wait for somebody to run them.
  var hasReadyHandlers: Bool { handlers?._withUnsafeGuaranteedRef { $0.isReady } ?? false }

  /// Runs the handlers of this worker that are there now, on its own drain or on its helper's.
  func runHandlers() -> (count: Int, isReady: Bool) {
    handlers?._withUnsafeGuaranteedRef { $0.run() } ?? (0, false)
  }

  /// What a watchdog compares: the first handler, if nobody runs any; 0: none.
  var nextHandler: UInt { hasReadyHandlers ? handlers.unsafelyUnwrapped._withUnsafeGuaranteedRef { $0.next } : 0 }

  /// Sends a handler to a worker, from anywhere.
  func sendToWorker(_ message: Inbox.Message, _ handlers: Unmanaged<HandlerQueue>) {
    let drainMustLook = handlers._withUnsafeGuaranteedRef { $0.append(message) }
    if drainMustLook, !isOwnTurn { sendTimerWakeup() }
  }

  /// Has `helper` run this worker's handlers.
  ///
  /// A request for each look of the watchdog: a helper that has become busy itself does not keep others from helping.
  func askForHelp(of helper: Scheduler) {
    let help: @Sendable () -> Void = { if self.runHandlers().isReady { self.sendTimerWakeup() } }
    helper.push(.work(ClosureWork.retained(help, nil)))
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// The worker that runs the handlers which coroutines on workers attach: that of the first of them.
  ///
  /// Under the lock. `readyQueue`: the attaching coroutine's.
  func workerOfHandlers(_ readyQueue: Unmanaged<Scheduler>) -> Unmanaged<Scheduler> {
    readyQueue._withUnsafeGuaranteedRef { scheduler in
      let mine = scheduler.index
      if pointee.handlerWorker == Completion.noWorker { pointee.handlerWorker = mine }
      if pointee.handlerWorker == mine { return readyQueue }
      let workerPool = scheduler.readyQueue.pointee.workerPool.unsafelyUnwrapped
      return workerPool._withUnsafeGuaranteedRef { workerPool in
        // A number from another group, as tests have them, may be beyond this one's.
        let index = Int(pointee.handlerWorker) % workerPool.workers.count
        return Unmanaged.passUnretained(workerPool.workers[index])
      }
    }
  }
}
