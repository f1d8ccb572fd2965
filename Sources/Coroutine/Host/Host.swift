internal import CCoroutineRuntime
import Dispatch
import Synchronization

/// The owner of a scheduler; see ``Host``.
@usableFromInline typealias Anchor = AnyObject

/// Drives a scheduler: gives it threads, wakes it for its timers, and knows whether it is current.
///
/// The hosts are a Dispatch queue (QueueHost), a thread of the worker pool (WorkerHost), a loop of another library
/// (LoopHost), and a simulated world (SimulatedHost). The scheduler calls the methods below, and never tests for the
/// kind of its host. A host belongs to one scheduler.
///
/// Anchor. The object that owns the scheduler, a Dispatch queue for instance, is its anchor. The scheduler holds its
/// anchor while any of its jobs or handlers is live, and passes it to the methods that need it.
@usableFromInline
class Host: @unchecked Sendable {
  // Sound because the base class has constants only, and a subclass documents the access to each of its fields.

  /// A name for dumps: escaped.
  let label: String
  /// The same as it was given, for programs.
  let givenLabel: String
  /// Whether the host chooses what runs next, and one of several ready select cases.
  let controlsOrder: Bool
  /// Whether the scheduler releases its anchor when nothing of it is live.
  let releasesAnchor: Bool
  /// Whether the drain may poll its inbox before it goes idle (Scheduler.swift).
  ///
  /// False on a loop of another library, which could not poll its own events in that time, and where time is virtual.
  let mayPoll: Bool
  /// Whether all drains run on one thread, so that a job may keep it (Carrier.swift).
  let hasOwnThread: Bool

  init(
    label: String,
    controlsOrder: Bool = false,
    releasesAnchor: Bool = false,
    mayPoll: Bool = true,
    hasOwnThread: Bool = false
  ) {
    self.label = label.asWord
    givenLabel = label
    self.controlsOrder = controlsOrder
    self.releasesAnchor = releasesAnchor
    self.mayPoll = mayPoll
    self.hasOwnThread = hasOwnThread
  }

  /// The clock of the scheduler's timers: nanoseconds that never decrease.
  var now: UInt64 { Clock.now }

  /// The clock of the running code; differs from `now` in a simulated world only (Timer/Clock.swift).
  var localNow: UInt64 { now }

  /// Returns how long `nanoseconds` of the running code's clock last by `now`.
  func lasting(_ nanoseconds: Int64) -> Int64 { nanoseconds }

  /// Returns the time of the scheduler's clock at which the running code's clock shows `reading`; no later than `now`
  /// if it has shown that.
  func time(showing reading: UInt64) -> UInt64 { reading }

  /// Returns how far the clock of the running code advances in the next `nanoseconds` of the scheduler's clock.
  func localLength(_ nanoseconds: UInt64) -> UInt64 { nanoseconds }

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

  // MARK: What a host may decide
  //
  // A simulated world overrides these. Elsewhere they do what is written here: nearly all of them nothing.

  /// Returns whether a running job must leave its stack before a wait that may be satisfied at once.
  ///
  /// Called at the first wait of each 256. `source` is the address of the source of the wait; 0 if there is none, or
  /// more than one.
  func mustGiveWay(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef, _ source: UInt) -> Bool {
    let clock = job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.clock }
    return clock &- carrier.pointee.now > Carrier.pollInterval
  }

  /// Returns whether a running job must leave its stack at a co_point, where no other job of its queue may run.
  func mustGiveWay(atPointOf job: JobRef) -> Bool { false }

  /// Called before the interrupt of a job is handled.
  func willHandleInterrupt() {}

  /// Called when a running job is about to throw its cancellation error.
  func willThrowCancellation(_ job: JobRef) {}

  /// Calls `push`, which sends a Swift job to the scheduler; returns false, without the call, if the host has ended.
  ///
  /// Any thread.
  func admit(_ push: () -> Void) -> Bool {
    push()
    return true
  }

  /// Returns the scheduler of a timer that code on `scheduler` starts; nil for any worker.
  func schedulerOfTimers(_ scheduler: Scheduler) -> Scheduler? { nil }

  /// Returns true if the host itself will run `body`, a body of co_blocking.
  func takesBlocking(_ job: JobRef, _ body: @autoclosure () -> @Sendable () -> Void) -> Bool { false }

  /// Draws a random number from 0 to below 1.
  func random(_ carrier: UnsafeMutablePointer<Carrier>) -> Double { .random(in: 0..<1) }

  /// Returns whether a fault happens.
  func chooseFault(_ name: StaticString) -> Bool { false }

  /// The number of the next job, if the host assigns its own.
  func nextJobID() -> UInt64? { nil }

  /// Returns the host's own scheduler of `queue`; without a queue, of the worker pool.
  func simulated(_ queue: DispatchQueue?) -> Scheduler? { nil }

  /// Throws if `job` must not wait for the real world, or move to `target` there; `what` describes the wait.
  func requireReal(_ job: JobRef?, on target: Scheduler?, _ what: () -> String) throws {}

  /// Called when the calling thread is about to wake a job of the scheduler from elsewhere.
  func noteWake(_ job: JobRef) {}

  /// Whether the calling thread is not the one that runs the host's jobs, in a world that has only one.
  var isCalledFromOutside: Bool { false }

  /// Called when a wait of the running job has ended that a thread outside of its world has satisfied.
  func checkWake(_ job: JobRef) {}

  /// Returns true if the host itself reports a failure that nothing has observed.
  func takesUnhandled(_ error: CoroutineRuntime.UnhandledError) -> Bool { false }

  /// What stands in the host's world for objects that store times.
  var standIns: StandIns { .ofProcess }

  /// Records that the current step uses an object (Shared.swift).
  func touches(_ object: UInt) {}

  /// Records that the current step may touch any object, because it cancels a job or runs a Task's code.
  func touchesEverything() {}

  // MARK: The host of the calling code
  //
  // Outside every world each of these costs one load of a word that does not change.

  /// The host of the calling code, if a world exists in the process.
  private static var ofCaller: Host? {
    guard cco_has_worlds(), let carrier = Carrier.current else { return nil }
    let scheduler = carrier.pointee.job?.pointee.scheduler.load(ordering: .relaxed) ?? carrier.pointee.scheduler
    return scheduler?.takeUnretainedValue().host
  }

  /// Throws if the calling code belongs to a simulated world, and is about to wait for the real world: to block the
  /// world's thread, to wait for a descriptor, or to move to `target`, a scheduler outside of it.
  static func requireReal(on target: Scheduler? = nil, _ what: () -> String) throws {
    guard cco_has_worlds() else { return }
    try ofCaller?.requireReal(Carrier.current?.pointee.job, on: target, what)
  }

  /// Whether the world of the calling code reports a failure that nothing has observed.
  static func takesUnhandled(_ error: CoroutineRuntime.UnhandledError) -> Bool {
    cco_has_worlds() && ofCaller?.takesUnhandled(error) ?? false
  }

  /// Tells a simulated world that the current step may touch any object.
  static func touchesEverything() {
    if cco_has_worlds() { ofCaller?.touchesEverything() }
  }

  /// Tells a simulated world that the current step uses an object; called by Shared only.
  @usableFromInline @inline(never)
  static func recordTouch(_ object: UInt) { ofCaller?.touches(object) }

  /// The host of a job that is in memory.
  static func of(_ job: JobRef) -> Host {
    job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.host }
  }

  /// What stands for objects that store times, by the clock of the calling code.
  static var standIns: StandIns { ofCaller?.standIns ?? .ofProcess }

  /// Returns the scheduler of `queue` in the calling code's world; nil outside a world.
  static func simulated(_ queue: DispatchQueue?) -> Scheduler? {
    cco_has_worlds() ? ofCaller?.simulated(queue) : nil
  }
}
