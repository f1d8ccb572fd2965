import Synchronization

// The handlers (then, finally, tap ...) that are bound to one worker of the shared scheduler: first in, first out, one
// at a time.
//
// Usually the drain of the worker runs them. If a job keeps that worker busy for long, another worker runs them instead
// (TakeOver.swift). Single handlers are not moved: the whole queue changes its runner. So handlers run in the order of
// appending, one at a time, on any thread.
//
//            append                        run                        the last has returned
//   EMPTY ------------> READY ----------------------------> RUNNING ------------------------> EMPTY
//                         ^                                    |
//                         +--- more were appended meanwhile ---+
//
// `isReady` is true in READY only. Everything changes under `lock`; no handler runs under it.
//
// One runner. `run` continues only in READY, and leaves READY under the lock: so of a drain and its rescuers only one
// continues.
//
// Why every handler runs. The thread that brings the queue to READY makes the worker's drain check it:
// - On the worker's own carrier, the drain checks before it goes idle.
// - On another thread, the thread sends the drain a wake-up (TimerWheel.swift), after `isReady` is set.
// In RUNNING the runner checks once more before it ends. If it is not the worker's own drain, it sends the wake-up.
//
// The order of registration. The handlers that coroutines of the shared scheduler attach to one promise or job go to
// one worker, that of the first (Completion.workerOfHandlers): a coroutine may be on another worker when it attaches
// the next one. They are sent in the order of attaching (Completion.swift), so they are appended, and run, in that
// order.
//
// A worker is never released, so a queued handler retains neither the scheduler nor its queue.

final class HandlerQueue: @unchecked Sendable {
  // Sound because everything mutable is accessed under `lock`, and `isReady` is atomic.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var waiting = WorkQueue()
  @exclusivity(unchecked) private var isRunning = false
  private let ready = Atomic<Bool>(false)

  init() {}

  /// Whether there are handlers that no thread runs; one plain load.
  var isReady: Bool { ready.load(ordering: .relaxed) }

  /// Appends a handler; returns whether that has made the queue ready, so that the worker's drain must check it.
  func append(_ message: Inbox.Message) -> Bool {
    lock.lock()
    defer { lock.unlock() }
    waiting.append(message)
    if isRunning || isReady { return false }
    ready.store(true, ordering: .relaxed)
    return true
  }

  /// Runs the queued handlers, unless another thread does; returns their number, and whether there are more by then.
  ///
  /// Handlers that are added meanwhile wait until the runner has read its clock again.
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
      ForkedChild.mayGoOn()
      lock.lock()
    }
    isRunning = false
    let hasMore = !waiting.isEmpty
    ready.store(hasMore, ordering: .relaxed)
    lock.unlock()
    return (count, hasMore)
  }
}

extension Scheduler {
  /// The handlers of a worker; nil on every other scheduler.
  var handlers: Unmanaged<HandlerQueue>? {
    worker.map { $0._withUnsafeGuaranteedRef { Unmanaged.passUnretained($0.handlers) } }
  }

  /// Whether handlers of this worker wait to be run.
  var hasReadyHandlers: Bool { handlers?._withUnsafeGuaranteedRef { $0.isReady } ?? false }

  /// Runs the queued handlers of this worker, on its own drain or a rescuer's.
  func runHandlers() -> (count: Int, isReady: Bool) {
    handlers?._withUnsafeGuaranteedRef { $0.run() } ?? (0, false)
  }

  /// Sends a handler to a worker, from any thread.
  func sendToWorker(_ message: Inbox.Message, _ handlers: Unmanaged<HandlerQueue>) {
    let needsCheck = handlers._withUnsafeGuaranteedRef { $0.append(message) }
    if needsCheck, !isRunningHere { sendTimerWakeup() }
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// Returns the worker that runs the handlers attached by coroutines on workers: the worker of the first of them.
  ///
  /// Called under the lock. `current` is the attaching coroutine's scheduler.
  func workerOfHandlers(_ current: Unmanaged<Scheduler>) -> Unmanaged<Scheduler> {
    current._withUnsafeGuaranteedRef { scheduler in
      let mine = scheduler.asWorker { $0.index }
      if pointee.handlerWorker == Completion.noWorker { pointee.handlerWorker = mine }
      let workerPool = scheduler.readyQueue.pointee.workerPool.unsafelyUnwrapped
      return workerPool._withUnsafeGuaranteedRef { workerPool in
        if pointee.handlerWorker == mine, Int(mine) < workerPool.workers.count { return current }
        // The number may be too large, if it is one of a spare worker, or of another pool in a test.
        let index = Int(pointee.handlerWorker) % workerPool.workers.count
        return Unmanaged.passUnretained(workerPool.workers[index])
      }
    }
  }
}
