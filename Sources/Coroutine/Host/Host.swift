/// The owner of a scheduler; see ``Host``.
@usableFromInline typealias Anchor = AnyObject

/// Drives a scheduler: gives it threads, wakes it for its timers, and knows whether it is current.
///
/// A Dispatch queue is a host (QueueHost), a simulation is another, and the scheduler of a forked child has a third.
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
  /// Whether the host chooses the next of several ready jobs or select cases.
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

  /// Called around work outside the scheduler that will wake one of its jobs, for a host that detects deadlocks.
  func beginOutsideWork() {}
  func endOutsideWork() {}
}
