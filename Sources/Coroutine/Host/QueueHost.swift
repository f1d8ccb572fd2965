internal import CCoroutine
import CDispatch
import Dispatch
import Synchronization

// Publication of a queue's scheduler
//  1. The scheduler is complete before it is published, including the mark on its queue. A thread that finds a
//     scheduler by its queue may call `isCurrent` at once. If the mark were missing, `Job.blockingWait` would block the
//     job's queue instead of throwing `wouldDeadlock`.
//  2. Publishing is `setSpecific`, finding is `getSpecific`. Dispatch orders the two by a lock of its own, which
//     ThreadSanitizer does not see: `cco_publish` and `cco_observe` tell it. In other builds they do nothing.
//  3. Of two threads that first use one queue, one creates its scheduler, under `creation`. The other finds it there.

/// Drives the scheduler of a DispatchQueue: each drain is a block of the queue.
///
/// The queue owns the scheduler through a queue-specific value, and the scheduler owns its host.
final class QueueHost: Host, @unchecked Sendable {
  // Sound because only the scheduler's drain accesses `timer`.

  /// The C queue behind Foundation's wrapper, valid while the anchor is held.
  ///
  /// It is `nil` if the wrapper's layout has changed.
  private let rawQueue: OpaquePointer?
  /// The kernel's number of the thread that drains, while queues are watched (StallReports); 0 if none does.
  let thread = Atomic<Int32>(0)
  @exclusivity(unchecked) private var timer: QueueTimer?
  /// The priority that corresponds to the queue's quality of service.
  override var taskPriority: TaskPriority? { priority }
  private let priority: TaskPriority?

  init(_ queue: DispatchQueue, releasesAnchor: Bool) {
    rawQueue = Self.rawQueue(of: queue)
    priority = Self.priority(of: queue)
    super.init(label: queue.label, releasesAnchor: releasesAnchor)
    _ = FirstTimer.shared
  }

  /// Returns the C queue, which Foundation's wrapper holds in its only stored property.
  private static func rawQueue(of queue: DispatchQueue) -> OpaquePointer? {
    Mirror(reflecting: queue).children.first { $0.label == "__wrapped" }?.value as? OpaquePointer
  }

  private static func priority(of queue: DispatchQueue) -> TaskPriority? {
    switch queue.qos.qosClass {
    case .userInteractive, .userInitiated: .userInitiated
    case .default: .medium
    case .utility: .utility
    case .background: .background
    default: nil
    }
  }

  override func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool {
    // The caller holds the anchor during the call, because the last live job may end on another thread meanwhile.
    LockCheck.noSpinLock(.dispatch)
    guard anchor != nil else { return false }
    let context = Unmanaged.passRetained(scheduler).toOpaque()
    if let rawQueue {
      dispatch_async_f(rawQueue, context) { QueueHost.drain($0!) }
    } else if let queue = anchor as? DispatchQueue {
      QueueHost.submitBlock(queue, UInt(bitPattern: context))
    }
    return true
  }

  private static func submitBlock(_ queue: DispatchQueue, _ context: UInt) {
    queue.async { QueueHost.drain(UnsafeMutableRawPointer(bitPattern: context)!) }
  }

  private static func drain(_ context: UnsafeMutableRawPointer) {
    let scheduler = Unmanaged<Scheduler>.fromOpaque(context).takeRetainedValue()
    guard StallReports.watchQueues.load(ordering: .relaxed), let begins = StallReports.queueDrainBegins,
      let host = scheduler.host as? QueueHost
    else { return scheduler.drain() }
    let thread = begins(host)
    scheduler.drain()
    // The next drain may have begun on another thread.
    _ = host.thread.compareExchange(expected: thread, desired: 0, ordering: .relaxed)
  }

  // MARK: Timers

  override func wake(at time: UInt64?, _ anchor: Anchor?) {
    guard let time else {
      timer?.stopRepeating()
      return
    }
    if timer == nil, let queue = anchor as? DispatchQueue { timer = QueueTimer(queue) }
    timer?.arm(time)
  }

  override func hasWoken() { timer?.sourceFired() }
  override func timersFired(_ count: Int) { timer?.timersFired(count) }
  override func anchorReleased() { timer = nil }

  // MARK: The scheduler of a queue

  private static let key = DispatchSpecificKey<Scheduler>()
  private static let creation = ThreadLock()

  /// Returns the scheduler of `queue`, and creates it at the first use.
  ///
  /// The queue owns it. In a simulated world, the world has one of its own for each queue.
  static func scheduler(for queue: DispatchQueue) -> Scheduler {
    if let simulated = Host.simulated(queue) { return simulated }
    if let found = observed(queue.getSpecific(key: key)) { return found }
    ForkedChild.noteUse()
    return creation.withLock {
      if let found = queue.getSpecific(key: key) { return found }
      let host = QueueHost(queue, releasesAnchor: true)
      let made = Scheduler(host: host, anchor: nil, pool: nil)
      host.publish(made, for: queue)
      return made
    }
  }

  /// The scheduler of the queue that the calling block runs on, or nil if no coroutine has ever run there.
  static var current: Scheduler? { observed(DispatchQueue.getSpecific(key: key)) }

  /// Marks the queue, and stores its scheduler in it; the last step of creating a scheduler.
  ///
  /// The mark identifies the blocks of this queue, and of every queue that targets it.
  private func publish(_ scheduler: Scheduler, for queue: DispatchQueue) {
    let address = Unmanaged.passUnretained(scheduler).toOpaque()
    if let rawQueue { dispatch_queue_set_specific(rawQueue, address, address, nil) }
    Self.store(scheduler, in: queue)
  }

  /// Stores a complete scheduler in its queue, where other threads find it.
  static func store(_ scheduler: Scheduler, in queue: DispatchQueue) {
    cco_publish(Unmanaged.passUnretained(scheduler).toOpaque())
    queue.setSpecific(key: key, value: scheduler)
  }

  private static func observed(_ found: Scheduler?) -> Scheduler? {
    if let found { cco_observe(Unmanaged.passUnretained(found).toOpaque()) }
    return found
  }

  override func isCurrent(_ scheduler: Scheduler) -> Bool {
    guard rawQueue != nil else { return Self.current === scheduler }
    return dispatch_get_specific(Unmanaged.passUnretained(scheduler).toOpaque()) != nil
  }
}

extension Scheduler {
  /// The queue that drives the scheduler, for calls to Dispatch that need a queue.
  ///
  /// A live scheduler of a queue has one.
  var currentQueue: DispatchQueue? { currentAnchor as? DispatchQueue }

  /// Whether the main queue drives the scheduler, which is live; a world's scheduler for that queue has no anchor.
  var isOfMainQueue: Bool { currentAnchor != nil && QueueHost.scheduler(for: .main) === self }
}
