internal import CCoroutine
import Dispatch
import Synchronization

/// The owner of a scheduler; see ``Host``.
@usableFromInline typealias Anchor = AnyObject

/// Drives a scheduler: gives it threads, wakes it for its timers, and knows whether it is current.
///
/// A Dispatch queue is a host (QueueHost), a simulated world is another (SimulatedHost), and the scheduler of a forked
/// child has a third.
/// The scheduler calls the methods below, and never tests for the kind of its host. A host belongs to one scheduler.
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
  /// Not on a loop of another library, which meanwhile could not look at its own events, nor where time is virtual.
  let mayPoll: Bool

  init(
    label: String,
    hasVirtualTime: Bool = false,
    controlsOrder: Bool = false,
    releasesAnchor: Bool = false,
    refusesJobs: Bool = false,
    mayPoll: Bool = true
  ) {
    self.label = label
    self.hasVirtualTime = hasVirtualTime
    self.controlsOrder = controlsOrder
    self.releasesAnchor = releasesAnchor
    self.refusesJobs = refusesJobs
    self.mayPoll = mayPoll && !hasVirtualTime
  }

  /// The clock of the scheduler's timers: nanoseconds that never decrease.
  var now: UInt64 { Clock.now }

  /// Submits one call of `scheduler.drain()`, after the work that the host has queued before.
  ///
  /// Returns false if the anchor is gone; then nothing of the scheduler is live. May be called on any thread.
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

  /// Called by the drain when nothing of the scheduler is live.
  ///
  /// The host releases what holds the anchor.
  func anchorReleased() {}

  /// Returns the index of the next of `count` candidates.
  ///
  /// Called only if the host controls the order.
  func choose(_ count: Int) -> Int { 0 }

  /// The priority of Tasks that a coroutine of the scheduler starts to wait for them; nil means that of the thread.
  var taskPriority: TaskPriority? { nil }

  // MARK: Simulated worlds
  //
  // Asked only where `hasVirtualTime` is true. Where that is not known anyway, `cco_has_worlds` is asked before: a hook
  // outside of worlds costs one load of a word that does not change.

  /// The scheduler that stands for that of `queue`, or of a worker of the pool without a queue.
  func simulated(_ queue: DispatchQueue?) -> Scheduler? { nil }

  /// The number of the next job, if the host assigns its own.
  func nextJobID() -> UInt64? { nil }

  /// Returns whether a running job must leave its stack, because another one is to run here.
  ///
  /// Called before each wait of a job, and at each co_point, which `holdsQueue`: no other job of the same queue runs.
  /// `source`: the address of what the job is about to wait for; 0 if there is none, or more than one.
  func reachesPoint(_ job: JobRef, _ source: UInt, holdsQueue: Bool) -> Bool { false }

  /// Called when a running job has cancelled another.
  func hasInterrupted() {}

  /// Called when a running job is about to throw its cancellation error.
  func throwsCancellation(_ job: JobRef) {}

  /// Returns whether a fault happens.
  func chooseFault(_ name: StaticString) -> Bool { false }

  /// Throws if the host's jobs must not wait for the real world; `what` says for what.
  func requireReal(_ job: JobRef?, _ what: () -> String) throws {}

  /// Returns true if the host itself runs a body of co_blocking.
  func takesBlocking(_ job: JobRef, _ body: @escaping @Sendable () -> Void) -> Bool { false }

  /// Throws if blocking the calling thread would block a simulated world.
  static func requireReal(_ what: () -> String) throws {
    guard cco_has_worlds() else { return }
    guard let carrier = Carrier.current, let scheduler = carrier.pointee.scheduler else { return }
    try scheduler._withUnsafeGuaranteedRef {
      if $0.host.hasVirtualTime { try $0.host.requireReal(carrier.pointee.job, what) }
    }
  }

  /// Throws if a job of a simulated world is about to wait for the real world.
  static func requireReal(_ job: JobRef, _ what: () -> String) throws {
    guard cco_has_worlds() else { return }
    try job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { try $0.host.requireReal(job, what) }
  }

  /// The scheduler that stands for that of `queue`, if the calling code is in a world; nil elsewhere.
  static func simulated(_ queue: DispatchQueue?) -> Scheduler? {
    guard cco_has_worlds() else { return nil }
    guard let scheduler = Carrier.current?.pointee.scheduler else { return nil }
    return scheduler._withUnsafeGuaranteedRef { $0.host.hasVirtualTime ? $0.host.simulated(queue) : nil }
  }
}
