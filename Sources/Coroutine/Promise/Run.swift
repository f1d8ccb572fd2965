internal import CCoroutine
import Dispatch

// A run is a coroutine of the library's that settles a promise, its result: a retry, a bounded `all(of:concurrently:)`.
// The promises that it makes and waits for are its steps.
//
//   RUNNING --- the result settles, by the coroutine or by other code ---> OVER: the pending steps are left
//      |
//      +------- the result is cancelled ---------------------------------> OVER: the pending steps are cancelled
//
// Invariants
//  1. The coroutine waits for a copy of each step, and the copy does not own the step (Promise+Passive.swift). So a
//     step that nothing can settle any more rejects with `abandoned`, as the upstream of a link does.
//  2. `steps` contains the copies that may be pending. Under `lock`, the first thread that ends the run takes them out
//     and sets `end`; a step that is made later finds `end`. So each copy is left or cancelled once, by the one thread
//     or by the other. The run ends within the call that settles or cancels the result.
//  3. A copy that was left is rejected. So the coroutine continues, finds that the run is over, and returns.
//  4. The result has the run until it settles, and the coroutine has the result. If the coroutine never begins, because
//     its job was dropped, the release of its body rejects the result.
//
// No edge leads from the result to the steps (Promise+Follow.swift). So the search for cycles does not find one that
// leads through a run. Such a cycle is a deadlock, and a dump shows the coroutine.
class Run: Upstreams, @unchecked Sendable {
  // Sound because everything mutable is under `lock`.

  /// What becomes of the pending steps.
  enum End: Sendable {
    case left
    /// `byConsumer`: as in `AnyPromise.cancel(with:unlessAwaited:byConsumer:)`.
    case cancelled(byConsumer: Bool)
  }

  final let lock = ThreadLock()
  @exclusivity(unchecked) private final var end: End?
  @exclusivity(unchecked) private final var steps: [AnyPromise?] = []
  /// Keeps the scheduler of the job, for `AnyPromise.needsThisThread`.
  @exclusivity(unchecked) private final var job: AnyJob?

  final var isOver: Bool { lock.withLock { end != nil } }

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
    if ForkedChild.refuses(queue == nil ? CCO_USES_THREADS : CCO_USES_QUEUES) {
      result.fail(CoroutineError.afterFork)
      return
    }
    // Its release rejects the result, if that is pending.
    let guarantor = Resumer(PromiseTarget(result))
    let job = Job(
      scheduler: Launch.scheduler(for: queue),
      name: name,
      stack: .standard,
      launchSite: result.launchSite,
      body: {
        _ = result.settle(Result { try body() })
        withExtendedLifetime(guarantor) {}
      }
    )
    result.completion.pointee.lock.withLock { result.node.pointee.scheduler = job.record.pointee.home }
    lock.withLock { if end == nil { self.job = job } }
    job.launch(.queued, holding: queue)
  }

  /// Ends the run: called by the thread that has settled the result, outside every lock.
  final func end(_ how: End) {
    lock.lock()
    guard end == nil else { return lock.unlock() }
    end = how
    let (steps, job) = (steps, job)
    (self.steps, self.job) = ([], nil)
    lock.unlock()
    for step in steps { if let step { Self.leave(step, how) } }
    _ = consume job
  }

  /// Rejects the copy of a step.
  private static func leave(_ copy: AnyPromise, _ end: End) {
    switch end {
    case .left:
      copy.completion.pointee.lock.withLock { copy.node.pointee.keepsUpstream = true }
      copy.cancel()
    case .cancelled(let byConsumer):
      _ = copy.cancel(with: nil, byConsumer: byConsumer)
    }
  }
}
