public import Dispatch
import Synchronization

/// The handle of a launched coroutine.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// let profile = co_launch { try fetch("/profile") }
/// let news = co_launch { try fetch("/news") }
/// let page = try profile.join().text + news.join().text
/// ```
///
/// Releasing it does not affect the coroutine; an unobserved failure is then reported to
/// ``CoroutineRuntime/unhandledErrorHandler``. Several coroutines may join it and get the same value, so values are
/// Sendable.
public final class Job<Success: Sendable>: AnyJob, @unchecked Sendable {
  // Sound because the completion has its own lock, and the body is accessed by the job's own carrier, or by the last
  // reference's owner (JobStart.swift).

  /// The body, which is in the completion's bytes until it is taken: the result comes after it.
  @usableFromInline typealias Body = () throws -> Success

  @inlinable
  init(
    scheduler: Unmanaged<Scheduler>,
    name: String?,
    stack: StackSize,
    launchSite: LaunchSite,
    body: @escaping () throws -> Success
  ) {
    super.init(
      scheduler: scheduler,
      name: name,
      stack: stack,
      launchSite: launchSite,
      completion: Completion(for: Success.self) { value, job in
        if let value {
          Completion.destroy(value, as: Success.self)
        } else {
          unsafeDowncast(job.unsafelyUnwrapped, to: Job<Success>.self).run()
        }
      }
    )
    // Into the object, not into a value that is then copied into it as numbers: the optimiser would not see that the
    // body outlives the caller, and would put what it captures on the caller's stack.
    completion.bytesAddress.withMemoryRebound(to: Body.self, capacity: 1) { $0.initialize(to: body) }
  }

  /// Whether the job has ended, with a value or an error.
  public var isFinished: Bool { completion.isSettled }

  /// Runs the body and settles.
  ///
  /// Called on the job's own stack. A world adds the completion of a job to each of its steps.
  @inlinable
  func run() {
    guard begin() else { return endDropped() }
    do {
      let value = try takeBody()()
      willSettle()
      _ = completion.succeed(value)
    } catch {
      willFail(error)
      _ = completion.fail(error)
    }
  }

  /// Takes the body out; called by the job's own carrier, or by the deinit.
  @inlinable @inline(__always)
  func takeBody() -> Body { completion.bytesAddress.withMemoryRebound(to: Body.self, capacity: 1) { $0.move() } }

  @usableFromInline override func releaseBody(leavesEmpty: Bool) {
    let body = takeBody()
    if leavesEmpty {
      completion.bytesAddress.withMemoryRebound(to: Body.self, capacity: 1) {
        $0.initialize(to: { throw CancellationError() })
      }
    }
    withExtendedLifetime(body) {}
  }

  /// Waits until the job has ended, and returns its result.
  ///
  /// Suspends the calling coroutine if the job has not ended. Any number of coroutines may join, before the end or
  /// after it. Starts a lazy job. If the calling coroutine is cancelled, it throws its own cancellation error and does
  /// not affect the job.
  /// - Throws: The job's error; the cancellation error; ``CoroutineError/wouldDeadlock`` if a job joins itself;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine.
  @inlinable @discardableResult
  @available(*, noasync, message: "await `value`")
  public func join() throws -> Success {
    // The completion is stored in this object, and its address does not keep the object alive.
    defer { withExtendedLifetime(self) {} }
    if !completion.known.isSettled { try prepareToWait() }
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

  /// Blocks the calling thread until the job has ended, and returns its result.
  ///
  /// For tests, command-line tools and other threads that serve no queue. Starts a lazy job. It cancels nothing, and
  /// cannot be cancelled. A queue that the job's queue *targets* cannot be recognised, because Dispatch does not reveal
  /// it: waiting there blocks for ever. In the body of a ``co_blocking(_:)`` the thread does not count towards
  /// ``CoroutineRuntime/blockingThreadLimit`` while it waits, so the job may use co_blocking too.
  /// - Throws: The job's error; ``CoroutineError/wouldDeadlock``, at once, inside a coroutine, or on the queue that the
  ///   job needs, or on a queue that targets it. A forked child that waits for a job of its parent ends.
  @discardableResult
  @available(*, noasync, message: "await `value`")
  public func blockingWait() throws -> Success {
    LockCheck.mayWait()
    if !completion.isSettled { try Host.requireReal { "Job.blockingWait, which blocks its thread" } }
    if let carrier = Carrier.current, carrier.pointee.job != nil {
      throw CoroutineError.wouldDeadlock(because: .blocksCoroutine)
    }
    if !completion.isSettled {
      ForkedChild.mayWait()
      if currentScheduler.isCurrent { throw CoroutineError.wouldDeadlock(because: .blocksOwnQueue) }
      completion.blockThread { start() }
    }
    completion.pointee.isObserved.store(true, ordering: .relaxed)
    return try completion.get(as: Success.self)
  }

  /// Runs `body` once after the end, whatever the outcome.
  ///
  /// `body` runs on `queue`; without a queue, on the queue of the calling coroutine; outside a coroutine, on a global
  /// queue. It never runs inside this call, and also runs if attached after the end. Several bodies run in the order of
  /// attaching. It does not change the outcome, and does not count as observing a failure. Does not suspend; any
  /// thread.
  @discardableResult
  public func finally(on queue: DispatchQueue? = nil, _ body: @escaping @Sendable () -> Void) -> Self {
    let handlerTarget = completion.handlerTarget(on: queue)
    completion.touch()
    if !completion.add(ClosureCallback { handlerTarget.deliver(body) }, observes: .no) { handlerTarget.deliver(body) }
    return self
  }
}
