import Synchronization

// What a timer is to those who set one; TimerWheel.swift keeps them, and says who owns what.

/// One timer, on the stack of whoever waits for it.
@usableFromInline
struct TimerNode {
  enum Effect {
    /// Ends the wait `epoch` of `job`.
    case wake(JobRef, WaitEpoch)
    /// Marks a deadline of `job` as passed.
    case expire(JobRef, UnsafeMutablePointer<CancelFrame>)
    /// Calls back, outside of every lock; the wheel holds it.
    case call(Unmanaged<TimerCall>)
  }

  let deadline: UInt64
  let effect: Effect
  /// Where the wheel keeps it, from `add` until it is called off; another's, or nobody's, once the timer has fired.
  var entry: UnsafeMutablePointer<TimerEntry>?
  /// The pool's when `entry` was taken.
  var generation: UInt32 = 0

  init(deadline: UInt64, effect: Effect) {
    self.deadline = deadline
    self.effect = effect
  }
}

/// A timer of something that is no job, in an object of its own.
@usableFromInline
class TimerCall: @unchecked Sendable {
  // Sound because the node is touched only under the wheel's lock.
  let node: UnsafeMutablePointer<TimerNode>
  @exclusivity(unchecked) private var scheduler: Unmanaged<Scheduler>?

  init() { node = .allocate(capacity: 1) }

  deinit { node.deallocate() }

  /// Called once, on the scheduler's drain, unless it was called off in time.
  func fire() {}

  /// Starts it: once, by whoever made it.
  ///
  /// Inside a simulation it runs on virtual time, else on one of the shared workers, which live for ever.
  final func start(_ duration: Duration) {
    // A handler has a turn and no job.
    let carrier = Carrier.current
    let current = carrier?.pointee.job?.pointee.scheduler.load(ordering: .relaxed) ?? carrier?.pointee.scheduler
    let simulated = (current?.takeUnretainedValue()).flatMap { $0.simulation == nil ? nil : $0 }
    let scheduler = simulated ?? WorkerPool.shared.nextWorker()
    self.scheduler = Unmanaged.passUnretained(scheduler)
    let now = scheduler.clock
    let effect = TimerNode.Effect.call(Unmanaged.passRetained(self))
    node.initialize(to: TimerNode(deadline: duration.deadline(after: now), effect: effect))
    scheduler.add(node, now: now)
  }

  /// It will not fire, and there is nothing to call off any more.
  ///
  /// Only a simulation's scheduler goes, on the thread that drives it.
  final func schedulerHasGone() { scheduler = nil }

  /// Calls it off, if it is not too late.
  ///
  /// Any thread, after `start`.
  final func stop() {
    guard let scheduler, scheduler._withUnsafeGuaranteedRef({ $0.take(node) }) else { return }
    Unmanaged.passUnretained(self).release()
  }
}
