public import Dispatch
import Synchronization

/// The handle of a launched coroutine.
///
/// Dropping it changes nothing for the coroutine; a failure that nobody has joined is then reported to
/// ``CoroutineRuntime/onUnhandledError``.
public final class Job<Success: Sendable>: AnyJob, @unchecked Sendable {
  // Sound because the completion has its own lock, and the body is touched by the job's own turn only.

  @exclusivity(unchecked) @usableFromInline var body: (() throws -> Success)?

  @inlinable
  init(
    scheduler: Unmanaged<Scheduler>,
    name: String?,
    stack: StackSize,
    launchSite: LaunchSite,
    body: @escaping () throws -> Success
  ) {
    self.body = body
    super.init(
      scheduler: scheduler,
      name: name,
      stack: stack,
      launchSite: launchSite,
      completion: Completion(for: Success.self),
      runner: { unsafeDowncast($0, to: Job<Success>.self).run() }
    )
  }

  /// Whether the body has ended, in whatever way.
  public var isFinished: Bool { completion.isSettled }

  /// Runs the body and settles.
  ///
  /// On the job's own stack.
  @inlinable
  func run() {
    do {
      try checkNotCancelled()
      let value = try body.take().unsafelyUnwrapped()
      willSettle()
      _ = completion.succeed(value)
    } catch {
      body = nil
      willSettle()
      _ = completion.fail(error)
    }
  }

  @usableFromInline override func releaseBody() { body = nil }

  /// The result.
  ///
  /// Suspends the calling coroutine until the job has ended, if it has not; any number may join, before the end or after.
  /// Throws the job's error; cancelled itself, it throws its own cancellation and leaves the job alone. Joining oneself
  /// throws ``CoroutineError/wouldDeadlock``, off a coroutine it throws ``CoroutineError/notInCoroutine``. Starts a lazy job.
  @inlinable @discardableResult
  public func join() throws -> Success {
    // What is waited on lies in this object, and an address of it keeps nothing alive.
    defer { withExtendedLifetime(self) {} }
    if !completion.isSettled { try prepareToWait() }
    try completion.wait(.job)
    return try completion.get(as: Success.self)
  }

  @usableFromInline
  func prepareToWait() throws {
    let (_, job) = try Carrier.requireJob()
    if job == record { throw CoroutineError.wouldDeadlock(because: .joinsItself) }
    try job.checkCancelled()
    start()
  }

  /// Blocks the calling thread until the job has ended and returns its result.
  ///
  /// For tests, command-line tools and other threads that are nobody's queue. Inside a coroutine, or on the queue that
  /// the job needs, it throws ``CoroutineError/wouldDeadlock`` at once; so on a queue that targets that one. A queue that
  /// the job's queue *targets* cannot be recognised, because Dispatch does not tell: waiting there blocks for ever. Starts
  /// a lazy job. Cancelling nothing, cancelled by nothing. In a forked child it throws ``CoroutineError/afterFork`` for a
  /// job of the parent that has not ended.
  @discardableResult
  public func wait() throws -> Success {
    if let carrier = Carrier.current, carrier.pointee.job != nil {
      throw CoroutineError.wouldDeadlock(because: .blocksCoroutine)
    }
    if !completion.isSettled {
      if ForkedChild.isHere, !currentScheduler.host.refusesJobs { throw CoroutineError.afterFork }
      if currentScheduler.isCurrent { throw CoroutineError.wouldDeadlock(because: .blocksOwnQueue) }
      start()
      let ended = DispatchSemaphore(value: 0)
      if completion.add(ClosureCallback { ended.signal() }) { ended.wait() }
    }
    completion.pointee.isObserved.store(true, ordering: .relaxed)
    return try completion.get(as: Success.self)
  }

  /// Runs `body` once after the end, whatever the end was: on `queue`, or where none is given on the queue of the
  /// coroutine that calls this, or else on a global queue.
  ///
  /// Never inside this call; in the order of attaching; also when attached late. Never changes the outcome, and does
  /// not count as seeing a failure. Does not suspend; any thread.
  @discardableResult
  public func finally(on queue: DispatchQueue? = nil, _ body: @escaping @Sendable () -> Void) -> Self {
    let handlerTarget = completion.handlerTarget(on: queue)
    if !completion.add(ClosureCallback { handlerTarget.deliver(body) }, observes: false) { handlerTarget.deliver(body) }
    return self
  }
}
