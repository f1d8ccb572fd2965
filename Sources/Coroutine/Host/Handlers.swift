public import Dispatch
import Glibc
import Synchronization

// The executor of handlers. It is the first of these that exists:
// - the given queue;
// - the queue of the coroutine that registers the handler, or a worker if that coroutine is on the shared scheduler
//   (HandlerQueue.swift);
// - a global queue.
// A handler never runs inside the registering or the settling call, and never under a lock. Handlers run in the order
// of registration.

/// Runs the handlers of a completion.
@usableFromInline
enum HandlerTarget: @unchecked Sendable {
  // Sound because an anchor is only retained, and passed to its host, which may be called on any thread.
  /// On a scheduler's queue, between its jobs.
  ///
  /// The queue is retained, because the scheduler retains it only while one of its jobs or handlers is live.
  case scheduler(Scheduler, Anchor?)
  /// On a global queue, one after another.
  case ordered(OrderedHandlers)

  @usableFromInline
  func deliver(_ body: @escaping @Sendable () -> Void) {
    switch self {
    case .scheduler(let scheduler, let anchor): scheduler.post(body, holding: anchor)
    case .ordered(let handlers): handlers.deliver(.work(ClosureWork.retained(body, nil)))
    }
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// Returns the target of a handler that is registered here and now.
  @usableFromInline
  func handlerTarget(on queue: DispatchQueue?) -> HandlerTarget {
    if let queue { return .scheduler(QueueHost.scheduler(for: queue), queue) }
    if let job = Carrier.current?.pointee.job {
      let current = job.pointee.scheduler.load(ordering: .relaxed)
      let scheduler = current.takeUnretainedValue()
      if scheduler.handlers == nil { return .scheduler(scheduler, scheduler.currentAnchor) }
      return .scheduler(known.lock.withLock { workerOfHandlers(current) }.takeUnretainedValue(), nil)
    }
    if let simulated = Host.simulated(nil) { return .scheduler(simulated, nil) }
    return .ordered(orderedHandlers())
  }

  /// Returns the object that keeps the handlers without a queue in order.
  func orderedHandlers() -> OrderedHandlers {
    if let made = known.lock.withLock({ pointee.ordered }) { return made }
    // Created outside the lock. If two threads create one at the same time, the first one that stores it wins.
    let mine = OrderedHandlers()
    return known.lock.withLock {
      if let made = pointee.ordered { return made }
      pointee.ordered = mine
      return mine
    }
  }
}

extension Scheduler {
  /// Runs `body` on this scheduler's queue, outside any coroutine, in the order of posting.
  ///
  /// Any thread.
  func post(_ body: @escaping @Sendable () -> Void, holding anchor: Anchor?) {
    // A worker is never released, so it needs no pin.
    let isPinned = handlers == nil
    if isPinned { pin(anchor) }
    sendInOrder(.work(ClosureWork.retained(body, isPinned ? self : nil)))
  }
}

// MARK: - Handlers in their order

/// Runs handlers on a global queue, one after another.
///
/// A handler that is added while another one runs follows it on the same thread.
@usableFromInline
final class OrderedHandlers: @unchecked Sendable {
  // Sound because everything is accessed under the lock.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var waiting = WorkQueue()
  @exclusivity(unchecked) private var isRunning = false
  /// The thread that runs the handlers; nil while none does.
  @exclusivity(unchecked) private var thread: pthread_t?

  init() {}

  /// Whether the calling code is one of these handlers, so that blocking it would block the others.
  var isRunningHere: Bool { lock.withLock { thread.map { pthread_equal($0, pthread_self()) != 0 } ?? false } }

  func deliver(_ message: Inbox.Message) {
    ForkedChild.noteUse()
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
      guard case .work(let item) = next else { return }
      item.run()
    }
  }
}
