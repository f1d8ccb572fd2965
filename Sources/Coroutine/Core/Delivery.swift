public import Dispatch
import Synchronization

// Where handlers run: on the queue that is named, else on the queue of the coroutine that registers them, else on a global
// queue. Never inside the registering or the settling call, never under a lock, in the order of registration.

@usableFromInline
enum Delivery: Sendable {
  /// On a scheduler's queue, between its jobs. The queue is held, since the scheduler holds it only while it is live.
  case scheduler(Scheduler, DispatchQueue?)
  /// On a global queue, one after the other.
  case ordered(OrderedDelivery)

  @usableFromInline
  func deliver(_ body: @escaping @Sendable () -> Void) {
    switch self {
    case .scheduler(let scheduler, let queue): scheduler.post(ClosureWork(body), on: queue)
    case .ordered(let delivery): delivery.deliver(body)
    }
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// The delivery for a handler that is registered here and now.
  @usableFromInline
  func delivery(on queue: DispatchQueue?) -> Delivery {
    if let queue { return .scheduler(SchedulerRegistry.scheduler(for: queue), queue) }
    if let job = Turn.current?.pointee.job {
      let scheduler = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
      return .scheduler(scheduler, scheduler.currentQueue)
    }
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    let delivery = pointee.ordered ?? OrderedDelivery()
    pointee.ordered = delivery
    return .ordered(delivery)
  }
}

/// Runs closures on a global queue, one after the other: what is queued while one runs follows on the same thread.
@usableFromInline
final class OrderedDelivery: @unchecked Sendable {
  // Sound because both are under the lock.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var waiting: [@Sendable () -> Void] = []
  @exclusivity(unchecked) private var isRunning = false

  init() {}

  func deliver(_ body: @escaping @Sendable () -> Void) {
    lock.lock()
    waiting.append(body)
    let mustStart = !isRunning
    isRunning = true
    lock.unlock()
    if mustStart { DispatchQueue.global().async { self.run() } }
  }

  private func run() {
    while true {
      lock.lock()
      let batch = waiting
      waiting = []
      if batch.isEmpty { isRunning = false }
      lock.unlock()
      if batch.isEmpty { return }
      for body in batch { body() }
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
    pin(queue)
    send(.work(Unmanaged.passRetained(item)))
  }
}
