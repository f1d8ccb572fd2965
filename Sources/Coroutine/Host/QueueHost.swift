internal import CCoroutineRuntime
import CDispatch
internal import CLinux
public import Dispatch
import Glibc
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

// MARK: - Its timer

/// The Dispatch timer source of a scheduler, which wakes it for its earliest timer.
///
/// Costs. When a Dispatch timer fires, two threads wake up; setting it again wakes Dispatch's manager thread once more.
/// So the source is set:
/// - only when the scheduler goes idle;
/// - only if the earliest deadline has changed;
/// - not twice within `pause`.
///
/// If many timers with different deadlines are queued, the source repeats, and wakes the scheduler every two
/// milliseconds for all of them. A single timer is accurate to the microsecond.
///
///     SET -- many were due, and the next is within two pauses ----> REPEATING
///      ^                                                              |
///      +---- few were due, or the next is further off ---------------+
final class QueueTimer {
  private let source: any DispatchSourceTimer
  private var armedFor = UInt64.max
  private var lastFired: UInt64 = 0
  private(set) var isRepeating = false

  /// The number of timers that were due since the source fired last.
  private var due = 0
  private var isCrowded: Bool { due > 64 }

  /// The pause after the source has fired, in ns.
  ///
  /// It is longer if many timers were due.
  private var pause: UInt64 { isCrowded ? 2_000_000 : 1_000_000 }

  init(_ queue: DispatchQueue) {
    source = DispatchSource.makeTimerSource(flags: .strict, queue: queue)
    // The handler finds the scheduler through the queue, which owns it. A weak reference would give the scheduler a
    // side table, which makes every retain of it slower, and looks like a leak to LeakSanitizer once the source is
    // released.
    source.setEventHandler { QueueHost.current?.hostTimerFired() }
    source.activate()
  }

  deinit { source.cancel() }

  func arm(_ wanted: UInt64) {
    if isCrowded, wanted < lastFired &+ 2 * pause {
      if !isRepeating { schedule(lastFired &+ pause, repeating: .nanoseconds(Int(pause))) }
      isRepeating = true
      return
    }
    let deadline = max(wanted, lastFired &+ pause)
    guard isRepeating || deadline != armedFor else { return }
    isRepeating = false
    armedFor = deadline
    schedule(deadline, repeating: .never)
  }

  /// Called when no timer is queued.
  ///
  /// A source that is set once may fire without effect, which costs less than to cancel it.
  func stopRepeating() {
    guard isRepeating else { return }
    isRepeating = false
    armedFor = .max
    source.schedule(deadline: .distantFuture)
  }

  private func schedule(_ deadline: UInt64, repeating interval: DispatchTimeInterval) {
    FirstTimer.shared.ensure()
    // Dispatch uses the two highest bits for other clocks. A source that fires early is set again.
    let deadline = DispatchTime(uptimeNanoseconds: min(deadline, UInt64(Int64.max / 2)))
    source.schedule(deadline: deadline, repeating: interval, leeway: .nanoseconds(0))
  }

  func sourceFired(at now: UInt64 = Clock.now) {
    armedFor = .max
    lastFired = now
    due = 0
  }

  func timersFired(_ count: Int) { due += count }
}

// MARK: - The first timer of a process

// A workaround for Dispatch timers that never fire. All Dispatch timers of one clock share one kernel descriptor
// (timerfd), which Dispatch creates when the first of them is set, and then keeps. If the process has no free
// descriptor at that moment, Dispatch reports nothing: it keeps the timer in its list, and no timer fires, even after
// descriptors are free again, until another timer is set. Then Dispatch checks all of them: it runs the due ones, and
// creates the descriptor for the others if it can.
//
// Dispatch needs two more descriptors, before its first timer or source of any kind: for epoll and an eventfd. If the
// process has none free for these, Dispatch ends it with a trap. This file cannot prevent that, because Dispatch does
// not reveal whether it has them.
//
// Therefore a first timer, without any other use, is set when the first scheduler is created. If it has not proven that
// there is a descriptor by the time that a real timer is set, a thread sets it again every few milliseconds until it
// has. Each time Dispatch runs what is due, so timers fire, somewhat late, even while no descriptor is free.
//
//   UNPROVEN -- fires --> PROVEN for ever
//      |   ^                 ^
//      v   | no thread       | fires
//      RETRYING -------------+
//
// The proof. The first timer also fires without a descriptor, when another timer is set after it was due. So firing
// counts only if a descriptor could be created right before the first timer was set: then Dispatch has created it as
// well, a moment later.

final class FirstTimer: @unchecked Sendable {
  // Sound because the flags are atomic, everything else is constant, and Dispatch's objects may be used on any thread.

  /// The first timer of the clock that schedulers use.
  static let shared = FirstTimer { $0.schedule(deadline: .now() + .milliseconds(1)) }

  private let isProven = Atomic<Bool>(false)
  /// Whether a descriptor could be created when the timer was last set.
  private let couldBeMade = Atomic<Bool>(false)
  private let isRetrying = Atomic<Bool>(false)
  private let source: any DispatchSourceTimer
  private let schedule: @Sendable (any DispatchSourceTimer) -> Void

  /// `schedule` sets the timer to fire soon, on the clock in question; each clock has a descriptor of its own.
  init(_ schedule: @escaping @Sendable (any DispatchSourceTimer) -> Void) {
    self.schedule = schedule
    source = DispatchSource.makeTimerSource(queue: DispatchQueue(label: "coroutine.first-timer"))
    source.setEventHandler { [unowned self] in
      if couldBeMade.load(ordering: .acquiring) { isProven.store(true, ordering: .relaxed) }
    }
    set()
    source.activate()
  }

  private func set() {
    couldBeMade.store(clinux_can_make_timer(), ordering: .releasing)
    schedule(source)
  }

  deinit { source.cancel() }

  /// Whether the timer has proven that Dispatch's timers fire.
  var works: Bool { isProven.load(ordering: .relaxed) }

  /// Makes sure that timers fire, those set from now on and earlier ones, even if no descriptor was free.
  ///
  /// Usually one load.
  func ensure() {
    guard !works, !isRetrying.exchange(true, ordering: .acquiringAndReleasing) else { return }
    let code = DetachedThread.start("co-first-timer") { [self] in
      while !works {
        usleep(5_000)
        if !works { set() }
      }
    }
    // The next caller tries again.
    if code != 0 { isRetrying.store(false, ordering: .releasing) }
  }
}

// MARK: - The executor of a queue

extension CoroutineExecutor {
  /// Creates an executor of `queue`, which it keeps alive.
  ///
  /// A concurrent queue counts as one serial worker of it, as for
  /// ``co_launch(on:name:stack:start:file:line:_:)-(DispatchQueue?,_,_,_,_,_,_)``. Never suspends; any thread.
  public convenience init(_ queue: DispatchQueue) { self.init(QueueHost.scheduler(for: queue), queue) }
}
