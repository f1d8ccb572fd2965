public import Dispatch
import Glibc
import Synchronization

// Where handlers run: on the queue that is named, else on the queue of the coroutine that registers them, or, where that is one of
// the shared scheduler's, on a worker (HandlerQueue.swift), else on a global queue. Never inside the registering or the settling
// call, never under a lock, in the order of registration.

@usableFromInline
enum HandlerTarget: Sendable {
  /// On a scheduler's queue, between its jobs. The queue is held, since the scheduler holds it only while it is live.
  case scheduler(Scheduler, DispatchQueue?)
  /// On a global queue, one after the other.
  case ordered(OrderedHandlers)

  @usableFromInline
  func deliver(_ body: @escaping @Sendable () -> Void) {
    switch self {
    case .scheduler(let scheduler, let queue): scheduler.post(ClosureWork(body), on: queue)
    case .ordered(let handlerTarget): handlerTarget.deliver(.work(Unmanaged.passRetained(ClosureWork(body))))
    }
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// The delivery for a handler that is registered here and now.
  @usableFromInline
  func handlerTarget(on queue: DispatchQueue?) -> HandlerTarget {
    if let queue { return .scheduler(SchedulerRegistry.scheduler(for: queue), queue) }
    if let job = Carrier.current?.pointee.job {
      let current = job.pointee.scheduler.load(ordering: .relaxed)
      let scheduler = current.takeUnretainedValue()
      if scheduler.handlers == nil { return .scheduler(scheduler, scheduler.currentQueue) }
      return .scheduler(pointee.lock.withLock { laneOfHandlers(current) }.takeUnretainedValue(), nil)
    }
    return .ordered(orderedHandlers())
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// What keeps the handlers that are bound to no queue in order.
  func orderedHandlers() -> OrderedHandlers {
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    let handlerTarget = pointee.ordered ?? OrderedHandlers()
    pointee.ordered = handlerTarget
    return handlerTarget
  }
}

/// Runs handlers on a global queue, one after the other: what is queued while one runs follows on the same thread.
@usableFromInline
final class OrderedHandlers: @unchecked Sendable {
  // Sound because everything is under the lock.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var waiting = WorkQueue()
  @exclusivity(unchecked) private var isRunning = false
  /// The thread that runs them.
  @exclusivity(unchecked) private var thread: pthread_t?

  init() {}

  /// Whether the caller is a handler of these, which the others wait for.
  var isRunningHere: Bool { lock.withLock { thread.map { pthread_equal($0, pthread_self()) != 0 } ?? false } }

  func deliver(_ message: Inbox.Message) {
    lock.lock()
    waiting.append(message)
    let mustStart = !isRunning
    isRunning = true
    lock.unlock()
    if mustStart { DispatchQueue.global().async { self.run() } }
  }

  private func run() {
    lock.withLock { thread = pthread_self() }
    while true {
      lock.lock()
      let next = waiting.popFirst()
      if next == nil { (isRunning, thread) = (false, nil) }
      lock.unlock()
      switch next {
      case .work(let item): item.takeRetainedValue().run()
      case .handler(let promise): AnyPromise.runHandler(promise)
      default: return
      }
    }
  }
}

/// A work item from a closure.
final class ClosureWork: WorkItem, @unchecked Sendable {
  // Sound because `body` is immutable.
  private let body: @Sendable () -> Void
  init(_ body: @escaping @Sendable () -> Void) {
    self.body = body
    super.init()
  }
  override func run() { body() }
}

extension Scheduler {
  /// Runs `item` on this scheduler's queue, outside of any coroutine, in the order of posting.
  ///
  /// Any thread.
  func post(_ item: WorkItem, on queue: DispatchQueue?) {
    // A worker needs nothing that holds it.
    if handlers == nil { pin(queue) }
    sendInOrder(.work(Unmanaged.passRetained(item)))
  }
}
