public import Dispatch
import Glibc
import Synchronization

// The place where handlers run: the given queue, else the queue of the coroutine that registers them, or, if that is
// one of the shared scheduler's, a worker (HandlerQueue.swift), else a global queue. Never inside the registering or
// the settling call, never under a lock, in the order of registration.

@usableFromInline
enum HandlerTarget: @unchecked Sendable {
  // Sound because an anchor is only retained, and passed to its host, which may be called on any thread.
  /// On a scheduler's queue, between its jobs. The queue is retained, because the scheduler holds it only while it is
  /// live.
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
      return .scheduler(pointee.lock.withLock { workerOfHandlers(current) }.takeUnretainedValue(), nil)
    }
    if let simulated = Host.simulated(nil) { return .scheduler(simulated, nil) }
    return .ordered(orderedHandlers())
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// Returns the object that keeps the handlers without a queue in order.
  func orderedHandlers() -> OrderedHandlers {
    if let made = pointee.lock.withLock({ pointee.ordered }) { return made }
    // Created outside of the lock. Of two threads that create one at the same time, the first to store it wins.
    let mine = OrderedHandlers()
    return pointee.lock.withLock {
      if let made = pointee.ordered { return made }
      pointee.ordered = mine
      return mine
    }
  }
}

/// Runs handlers on a global queue, one after another: a handler that is added while one runs follows on the same
/// thread.
@usableFromInline
final class OrderedHandlers: @unchecked Sendable {
  // Sound because everything is accessed under the lock.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var waiting = WorkQueue()
  @exclusivity(unchecked) private var isRunning = false
  /// The thread that runs them.
  @exclusivity(unchecked) private var thread: pthread_t?

  init() {}

  /// Whether the caller is one of these handlers, which the others wait for.
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
      guard case .work(let item) = next else { return }
      item.run()
    }
  }
}

/// A work item made from a closure; it may keep a scheduler pinned.
final class ClosureWork: Sendable {
  // Sound because the item is accessed only by the queue that holds it.
  @exclusivity(unchecked) private nonisolated(unsafe) var storage = WorkItem { item in
    let work: Unmanaged<ClosureWork> = object(holding: UnsafeRawPointer(item), at: 0)
    work.takeRetainedValue().run()
  }
  private let body: @Sendable () -> Void
  private let pinned: Scheduler?

  private init(_ body: @escaping @Sendable () -> Void, _ pinned: Scheduler?) {
    self.body = body
    self.pinned = pinned
    checkAddress(item, of: &storage)
  }

  private var item: UnsafeMutablePointer<WorkItem> { propertyAddress(in: self, at: 0, as: WorkItem.self) }

  /// Returns an item that owns its object.
  static func retained(_ body: @escaping @Sendable () -> Void, _ pinned: Scheduler?) -> UnsafeMutablePointer<WorkItem> {
    let work = ClosureWork(body, pinned)
    _ = Unmanaged.passRetained(work)
    return work.item
  }

  private func run() {
    body()
    pinned?.unpin()
  }
}

extension Scheduler {
  /// Runs `body` on this scheduler's queue, outside any coroutine, in the order of posting.
  ///
  /// Any thread.
  func post(_ body: @escaping @Sendable () -> Void, holding anchor: Anchor?) {
    // A worker lives for ever, so it needs no pin.
    let isPinned = handlers == nil
    if isPinned { pin(anchor) }
    sendInOrder(.work(ClosureWork.retained(body, isPinned ? self : nil)))
  }
}
