internal import CCoroutineRuntime
import Dispatch
import Synchronization

// A run is a coroutine of the library's that settles a promise, its result: a retry, a bounded `all(of:concurrently:)`.
// The promises that it makes and waits for are its steps.
//
//   RUNNING --- the result settles, by the coroutine or by other code ---> OVER: the pending steps are left
//      |
//      +------- the result is cancelled ---------------------------------> OVER: the pending steps are cancelled
//
// Invariants
//  1. The coroutine waits for a copy of each step, and the copy does not own the step (PromiseGraph.swift). So a
//     step that nothing can settle any more rejects with `abandoned`, as the upstream of a link does.
//  2. `steps` contains the copies that may be pending. Under `lock`, the first thread that ends the run takes them out
//     and sets `end`; a step that is made later finds `end`. So each copy is left or cancelled once, by the one thread
//     or by the other. The run ends within the call that settles or cancels the result.
//  3. A copy that was left is rejected. So the coroutine continues, finds that the run is over, and returns.
//  4. The result has the run until it settles, and the coroutine has the result. If the coroutine never begins, because
//     its job was dropped, the release of its body rejects the result.
//
// No edge leads from the result to the steps (PromiseGraph.swift). So the search for cycles does not find one that
// leads through a run. Such a cycle is a deadlock, and a dump shows the coroutine.
class Run: Upstreams, @unchecked Sendable {
  // Sound because everything mutable is under `lock`, and `home` is set before the run's coroutine is launched.

  /// What becomes of the pending steps.
  enum End: Sendable {
    case left
    /// `byConsumer`: as in `AnyPromise.cancel(with:unlessAwaited:byConsumer:)`.
    case cancelled(byConsumer: Bool)
  }

  // Not shared: each end follows a settling of the result, which tells.
  final let lock = ThreadLock()
  @exclusivity(unchecked) private final var end: End?
  @exclusivity(unchecked) private final var steps: [AnyPromise?] = []
  /// The scheduler on which the coroutine begins: `PromiseNode.scheduler` is alive as long as the run.
  ///
  /// Not the job's: a coroutine that goes to another queue takes its job's scheduler along.
  @exclusivity(unchecked) private final var home: Scheduler?
  /// The number (OwnerNumber) of the coroutine; 0 before its launch.
  // Not shared: only the search for deadlocks reads it.
  private final let number = Atomic<UInt>(0)

  final var runner: UInt? {
    let number = number.load(ordering: .relaxed)
    return number == 0 ? nil : number
  }

  /// Whether another step may be made.
  ///
  /// The result settles before the run ends: its waiters and observers are told between the two.
  final func mayGoOn(_ result: AnyPromise) -> Bool { !result.isSettled && lock.withLock { end == nil } }

  /// Attaches the run to its result, which no other thread knows yet.
  init(_ result: AnyPromise) {
    super.init()
    result.node.pointee.upstreams = self
  }

  final override var run: Run? { self }

  /// Returns a promise that settles as `made` does, for the coroutine.
  ///
  /// It replaces the step at `index`, which has settled.
  final func step<Value: Sendable>(of made: Promise<Value>, at index: Int = 0) -> Promise<Value> {
    // The run gets the failure, or has ended.
    made.ignore()
    if made.isSettled { return made }
    let copy = Promise<Value>(launchSite: made.launchSite)
    copy.isPassive = true
    copy.ignore()
    _ = made.link(copy, nil, [], Promise<Value>.copier)
    let end = lock.withLock {
      if self.end == nil {
        while steps.count <= index { steps.append(nil) }
        steps[index] = copy
      }
      return self.end
    }
    if let end { Self.leave(copy, end) }
    return copy
  }

  /// Launches the coroutine, which settles the result with the outcome of `body`.
  final func start<Output: Sendable>(
    _ result: Promise<Output>,
    on queue: DispatchQueue?,
    name: String,
    _ body: @escaping @Sendable () throws -> Output
  ) {
    let queue = queueOfHandlers(queue)
    ForkedChild.use(queue == nil ? CCO_USES_THREADS : CCO_USES_QUEUES)
    // Its release rejects the result, if that is pending.
    let guarantor = Resumer(PromiseTarget(result))
    let job = Job(
      scheduler: Self.scheduler(for: queue),
      name: name,
      stack: .standard,
      launchSite: result.launchSite,
      body: {
        _ = result.settle(Result { try body() })
        withExtendedLifetime(guarantor) {}
      }
    )
    let home = job.record.pointee.home
    self.home = home.takeUnretainedValue()
    result.completion.withLock { result.node.pointee.scheduler = home }
    job.launch(.queued, holding: queue)
    number.store(job.record.ownerNumber, ordering: .relaxed)
  }

  /// Returns the scheduler for a run without a queue: the caller's, also if that is a handler on the loop of a host.
  private static func scheduler(for queue: DispatchQueue?) -> Unmanaged<Scheduler> {
    if queue == nil, let carrier = Carrier.current, carrier.pointee.job == nil, let caller = carrier.pointee.scheduler {
      let ofHost = caller._withUnsafeGuaranteedRef { $0.worker == nil && $0.currentQueue == nil ? $0.forRecord() : nil }
      if let ofHost { return ofHost }
    }
    return Launch.scheduler(for: queue)
  }

  /// Ends the run: called by the thread that has settled the result, outside every lock.
  final func end(_ how: End) {
    lock.lock()
    guard end == nil else { return lock.unlock() }
    end = how
    let steps = steps
    self.steps = []
    lock.unlock()
    for step in steps { if let step { Self.leave(step, how) } }
  }

  /// Rejects the copy of a step.
  private static func leave(_ copy: AnyPromise, _ end: End) {
    switch end {
    case .left:
      copy.completion.withLock { copy.node.pointee.keepsUpstream = true }
      copy.cancel()
    case .cancelled(let byConsumer):
      _ = copy.cancel(with: nil, byConsumer: byConsumer)
    }
  }
}
