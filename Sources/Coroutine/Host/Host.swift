internal import CCoroutine
import Dispatch
import Synchronization

/// The owner of a scheduler; see ``Host``.
@usableFromInline typealias Anchor = AnyObject

/// Drives a scheduler: gives it threads, wakes it for its timers, and knows whether it is current.
///
/// The hosts are a Dispatch queue (QueueHost), a thread of the worker pool (WorkerHost), a loop of another library
/// (LoopHost), a simulated world (SimulatedHost), and the host of a forked child (RefusingHost). The scheduler calls
/// the methods below, and never tests for the kind of its host. A host belongs to one scheduler.
///
/// Anchor. The object that owns the scheduler, a Dispatch queue for instance, is its anchor. The scheduler holds its
/// anchor while any of its jobs or handlers is live, and passes it to the methods that need it.
@usableFromInline
class Host: @unchecked Sendable {
  // Sound because the base class has constants only, and a subclass documents the access to each of its fields.

  /// A name for dumps.
  let label: String
  /// Whether the host has its own time, which moves only when nothing can run.
  ///
  /// If so, nothing may spin until real time has passed.
  @usableFromInline let hasVirtualTime: Bool
  /// Whether the host chooses one of several ready select cases.
  @usableFromInline let controlsOrder: Bool
  /// Whether the scheduler releases its anchor when nothing of it is live.
  let releasesAnchor: Bool
  /// Whether the host fails every job in place of running it, as in a forked child.
  let refusesJobs: Bool
  /// Whether the drain may poll its inbox before it goes idle (IdleSpin.swift).
  ///
  /// False on a loop of another library, which could not poll its own events in that time, and where time is virtual.
  let mayPoll: Bool
  /// Whether all drains run on one thread, so that a job may keep it (Scheduler+Keep.swift).
  let hasOwnThread: Bool

  init(
    label: String,
    hasVirtualTime: Bool = false,
    controlsOrder: Bool = false,
    releasesAnchor: Bool = false,
    refusesJobs: Bool = false,
    mayPoll: Bool = true,
    hasOwnThread: Bool = false
  ) {
    self.label = label.asWord
    self.hasVirtualTime = hasVirtualTime
    self.controlsOrder = controlsOrder
    self.releasesAnchor = releasesAnchor
    self.refusesJobs = refusesJobs
    self.mayPoll = mayPoll && !hasVirtualTime
    self.hasOwnThread = hasOwnThread
  }

  /// The clock of the scheduler's timers: nanoseconds that never decrease.
  var now: UInt64 { Clock.now }

  /// The clock of the running code; differs from `now` in a simulated world only (Timer/LocalTime.swift).
  var localNow: UInt64 { now }

  /// Returns how long `nanoseconds` of the running code's clock last by `now`.
  func lasting(_ nanoseconds: Int64) -> Int64 { nanoseconds }

  /// Submits one call of `scheduler.drain()`, after the work that the host has queued before.
  ///
  /// Returns false if the anchor was released; then no job or handler of the scheduler is live. Any thread.
  func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool { fatalError("a host submits drains") }

  /// Whether the calling thread currently belongs to the host, so that blocking it would block the scheduler's jobs.
  func isCurrent(_ scheduler: Scheduler) -> Bool { false }

  /// Requests a drain at `time`.
  ///
  /// Nil means that no timer is set. Called by the drain before it goes idle.
  func wake(at time: UInt64?, _ anchor: Anchor?) {}

  /// Called when the host's wake-up has arrived at the drain.
  func hasWoken() {}

  /// Called by the drain when `count` timers have just fired.
  func timersFired(_ count: Int) {}

  /// Releases the host's references to the anchor; called by the drain when no job or handler of the scheduler is live.
  func anchorReleased() {}

  /// Returns the index of the next of `count` candidates.
  ///
  /// Called only if the host controls the order.
  func choose(_ count: Int) -> Int { 0 }

  /// The priority of Tasks that a coroutine of the scheduler starts to wait for them; nil means that of the thread.
  var taskPriority: TaskPriority? { nil }

  // MARK: Simulated worlds
  //
  // Called only where `hasVirtualTime` is true. The static functions below test `cco_has_worlds` first, so that outside
  // a world a hook costs one load of a word that does not change.

  /// Returns the world's scheduler of `queue`; without a queue, of the worker pool.
  func simulated(_ queue: DispatchQueue?) -> Scheduler? { nil }

  /// The number of the next job, if the host assigns its own.
  func nextJobID() -> UInt64? { nil }

  /// Returns whether a running job must leave its stack, because another job is to run at this point.
  ///
  /// Called before each wait of a job, and at each co_point. `holdsQueue` is true at a co_point: no other job of the
  /// same queue may run. `source` is the address of the source of the wait; 0 if there is none, or more than one.
  func reachesPoint(_ job: JobRef, _ source: UInt, holdsQueue: Bool) -> Bool { false }

  /// Records that the current step may touch any object, because it cancels a job or runs a Task's code.
  func touchesEverything() {}

  /// Records that the current step uses an object without waiting for it.
  func touches(_ object: UInt) {}

  /// Calls `push`, which sends a Swift job to the scheduler; returns false, without the call, if the host has ended.
  ///
  /// Any thread.
  func admit(_ push: () -> Void) -> Bool { fatalError("a host with virtual time admits Swift jobs") }

  /// Called when a running job is about to throw its cancellation error.
  func throwsCancellation(_ job: JobRef) {}

  /// Returns whether a fault happens.
  func chooseFault(_ name: StaticString) -> Bool { false }

  /// Throws if the host's jobs must not wait for the real world; `what` describes the wait.
  func requireReal(_ job: JobRef?, _ what: () -> String) throws {}

  /// Returns true if the host itself will run a body of co_blocking.
  func takesBlocking(_ job: JobRef, _ body: @escaping @Sendable () -> Void) -> Bool { false }

  /// Throws if blocking the calling thread would block a simulated world.
  static func requireReal(_ what: () -> String) throws {
    guard cco_has_worlds() else { return }
    guard let carrier = Carrier.current, let scheduler = carrier.pointee.scheduler else { return }
    try scheduler._withUnsafeGuaranteedRef {
      if $0.host.hasVirtualTime { try $0.host.requireReal(carrier.pointee.job, what) }
    }
  }

  /// Tells a simulated world that the current step may touch any object.
  static func touchesEverything() {
    guard cco_has_worlds(), let scheduler = Carrier.current?.pointee.scheduler else { return }
    scheduler._withUnsafeGuaranteedRef { if $0.host.hasVirtualTime { $0.host.touchesEverything() } }
  }

  /// Throws if a job of a simulated world is about to wait for the real world.
  static func requireReal(_ job: JobRef, _ what: () -> String) throws {
    guard cco_has_worlds() else { return }
    try job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { try $0.host.requireReal(job, what) }
  }

  /// Throws if a job of a simulated world is about to move to a scheduler outside of it.
  static func requireReal(_ job: JobRef, on scheduler: Scheduler, _ what: () -> String) throws {
    guard cco_has_worlds(), !scheduler.host.hasVirtualTime else { return }
    try requireReal(job, what)
  }

  /// Returns the scheduler of `queue` in the calling code's world; nil outside a world.
  static func simulated(_ queue: DispatchQueue?) -> Scheduler? {
    guard cco_has_worlds() else { return nil }
    guard let scheduler = Carrier.current?.pointee.scheduler else { return nil }
    return scheduler._withUnsafeGuaranteedRef { $0.host.hasVirtualTime ? $0.host.simulated(queue) : nil }
  }
}
