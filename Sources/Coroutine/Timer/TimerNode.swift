import Synchronization

// The timer as its owner sees it. TimerWheel.swift stores timers, and documents the ownership.

/// One timer, stored on the stack of the waiting coroutine or in a `TimerCall`.
@usableFromInline
struct TimerNode {
  enum Effect {
    /// Ends the wait `epoch` of `job`.
    case wake(JobRef, WaitEpoch)
    /// Marks a deadline of `job` as expired.
    case expire(JobRef, UnsafeMutablePointer<CancelFrame>)
    /// Calls `fire`, outside every lock. The wheel holds the call.
    case call(Unmanaged<TimerCall>)
  }

  let deadline: UInt64
  fileprivate(set) var effect: Effect
  /// The wheel's entry for this timer, from `add` until the timer is removed.
  ///
  /// Once the timer has fired, the entry is free or belongs to another node.
  var entry: UnsafeMutablePointer<TimerEntry>?
  /// The generation of the pool when `entry` was taken.
  var generation: UInt32 = 0

  init(deadline: UInt64, effect: Effect) {
    self.deadline = deadline
    self.effect = effect
  }

  /// Creates the timer of a job whose wait has not begun; `add(_:waking:now:)` sets the epoch.
  init(deadline: UInt64, _ job: JobRef) { self.init(deadline: deadline, effect: .wake(job, .none)) }
}

extension Scheduler {
  /// Starts a timer that ends the wait that has just begun, which `epoch` names.
  func add(_ node: UnsafeMutablePointer<TimerNode>, waking epoch: WaitEpoch, now: UInt64) {
    if case .wake(let job, _) = node.pointee.effect { node.pointee.effect = .wake(job, epoch) }
    add(node, now: now)
  }
}

/// A timer that belongs to no job, in an object of its own.
@usableFromInline
class TimerCall: @unchecked Sendable {
  // Sound because the node is accessed only under the wheel's lock.
  let node: UnsafeMutablePointer<TimerNode>
  @exclusivity(unchecked) private var scheduler: Unmanaged<Scheduler>?

  init() { node = .allocate(capacity: 1) }

  deinit { node.deallocate() }

  /// Called once, by the scheduler's drain, unless the timer was stopped before.
  func fire() {}

  /// Starts the timer.
  ///
  /// Called once, by the creator. Inside a simulation the timer runs on virtual time. Outside, it runs on one of the
  /// shared workers, which live for ever. In a world with hosts, `isLocal` says whether the clock of the creator's host
  /// measures the duration, or the world's.
  final func start(_ duration: Duration, isLocal: Bool = true) {
    let caller = Carrier.current?.callerScheduler?.takeUnretainedValue()
    let own = caller.flatMap { $0.host.schedulerOfTimers($0) }
    ForkedChild.noteUse()
    let scheduler = own ?? WorkerPool.shared.nextWorker()
    self.scheduler = Unmanaged.passUnretained(scheduler)
    let now = scheduler.clock
    let nanoseconds = duration.nanoseconds
    let deadline =
      isLocal ? scheduler.deadline(nanoseconds, after: now) : Duration.deadline(nanoseconds, after: now)
    // The scheduler would not queue the timer, and nothing would release this object.
    if deadline == Duration.never {
      self.scheduler = nil
      return
    }
    let effect = TimerNode.Effect.call(Unmanaged.passRetained(self))
    node.initialize(to: TimerNode(deadline: deadline, effect: effect))
    scheduler.add(node, now: now)
  }

  /// Called when the scheduler is released: the timer will not fire, and `stop` has nothing to remove.
  ///
  /// Of the schedulers on which `start` puts timers, only a world's is ever released, on the thread that drives it. A
  /// queue's scheduler is released as well, but has no timer of this kind.
  final func schedulerHasGone() { scheduler = nil }

  /// Stops the timer if it has not fired.
  ///
  /// Called on any thread, after `start`.
  final func stop() {
    guard let scheduler, scheduler._withUnsafeGuaranteedRef({ $0.take(node) }) else { return }
    Unmanaged.passUnretained(self).release()
  }
}
