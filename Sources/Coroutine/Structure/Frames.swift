import Glibc
import Synchronization

/// Runs `body` under a deadline; without one if `duration` is nil.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// let page = try co_timeout(.seconds(5)) {
///   let address = try fetch("/address").text
///   return try fetch(address)
/// }
/// ```
///
/// After `duration`, every suspension point in `body` throws CancellationError, and co_timeout throws ``TimeoutError``.
/// That is no cancellation: the caller continues. A `co_delay` that ends exactly at the deadline throws, too. Deadlines
/// nest, and the earliest counts. With nil, the call
/// only calls `body`, and enclosing deadlines hold. A deadline that is 292 years away never passes.
///
/// - Throws: ``TimeoutError``, which says where this call is, after `duration`; at once, without calling `body`, if it
///   is zero or less. An error of `body` itself. ``CoroutineError/notInCoroutine`` outside a coroutine, unless
///   `duration` is nil.
///
/// A body that returns a value despite the deadline has succeeded. `body` runs directly, on this coroutine, and sees a
/// cancellation from outside as usual.
@inlinable @discardableResult
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_timeout<Output>(
  _ duration: Duration?,
  file: StaticString = #fileID,
  line: UInt = #line,
  _ body: () throws -> Output
) throws -> Output {
  // Inlined, so that a nil costs no more than the call of `body`.
  guard let duration else { return try body() }
  return try withDeadline(after: duration, called: LaunchSite(file: file, line: line), body)
}

/// Runs `body` under a deadline at an instant; without one for nil.
///
/// In all other respects it behaves as ``co_timeout(_:file:line:_:)`` does, with the time from now until `instant`. So
/// calls that follow one another may share one deadline.
@inlinable @discardableResult
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_timeout<Output>(
  until instant: CoroutineClock.Instant?,
  file: StaticString = #fileID,
  line: UInt = #line,
  _ body: () throws -> Output
) throws -> Output {
  guard let instant else { return try body() }
  let site = LaunchSite(file: file, line: line)
  return try withDeadline(after: co_now.duration(to: instant), at: instant, called: site, body)
}

/// Runs `body` under a deadline after `duration`, which is that of the `instant` if there is one.
///
/// `site`: where a program has asked for it; nil for a deadline of the library's own, whose passing is not counted.
@usableFromInline
func withDeadline<Output>(
  after duration: Duration,
  at instant: CoroutineClock.Instant? = nil,
  called site: LaunchSite?,
  _ body: () throws -> Output
) throws -> Output {
  let (_, job) = try Carrier.requireJob()
  try job.checkCancelled()
  guard duration > .zero else { throw TimeoutError.passed(after: duration, at: site) }
  var frame = CancelFrame(.deadline, inside: job.pointee.frames)
  return try withUnsafeMutablePointer(to: &frame) { frame in
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    let (now, deadline) = scheduler._withUnsafeGuaranteedRef { scheduler in
      let now = scheduler.clock
      if let instant { return (now, scheduler.deadline(at: instant)) }
      return (now, scheduler.deadline(duration.nanoseconds, after: now))
    }
    // The instant may have passed since `duration` was taken.
    guard deadline > now else { throw TimeoutError.passed(after: duration, at: site) }
    var node = TimerNode(deadline: deadline, effect: .expire(job, frame))
    return try withUnsafeMutablePointer(to: &node) { node in
      frame.pointee.timer = (node, scheduler)
      scheduler._withUnsafeGuaranteedRef { $0.add(node, now: now) }
      job.pointee.frames = frame
      defer {
        // After this, no other thread touches the frame; see TimerWheel.swift about firing under the lock.
        frame.pointee.timer!.scheduler._withUnsafeGuaranteedRef { $0.remove(node) }
        job.pointee.frames = frame.pointee.outer
        job.forgetSignals()
      }
      do {
        return try body()
      } catch let error as CancellationError {
        // An enclosing cancellation that is also in force takes precedence: it has to unwind further than this one.
        let outer = frame.pointee.outer
        job.pointee.frames = outer
        if let enclosing = job.cancellation() { throw enclosing }
        guard frame.pointee.isSignalled.load(ordering: .acquiring) else { throw error }
        throw TimeoutError.passed(after: duration, at: site)
      }
    }
  }
}

// MARK: - Shields

/// Hides cancellation from outside while `body` runs, so that cleanup code can wait.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// func store(_ line: String) throws {
///   defer { try? co_shield { try journal.send("stored \(line)") } }
///   try co_delay(.seconds(1))
/// }
/// ```
///
/// Hidden are the cancellation of the job, and enclosing deadlines and scopes. The next suspension after the end sees
/// them again. Deadlines and scopes inside `body` work as usual. Calls `body` directly; outside a coroutine it does
/// nothing else.
@discardableResult
@available(*, noasync, message: "start a Task, or await the `value` of a coroutine that does this")
public func co_shield<Output, Failure>(_ body: () throws(Failure) -> Output) throws(Failure) -> Output {
  guard let job = Carrier.current?.pointee.job else { return try body() }
  return try job.withShield(body)
}

// MARK: - Pins

/// Runs `body`, and keeps the coroutine on its thread until `body` has ended: the coroutine is not stolen, not taken
/// over, and not taken along.
///
/// For code with thread-locals, and for packages that lock a `Mutex` around a closure that waits. `body` may wait;
/// other coroutines run on the thread meanwhile.
///
/// ```swift
/// try co_pinned {
///   let context = ThreadContext.current   // a thread-local
///   try channel.send(request)             // waits, and continues on the same thread
///   context.finish()
/// }
/// ```
///
/// - Calls nest. The coroutine is free again when the outermost one has ended, by a value or by an error.
/// - It works on the shared scheduler, on the thread of a ``CoroutineHost``, which has to be the same for all drains,
///   and in a simulated world, where only a coroutine without a queue has a thread.
/// - Code that runs elsewhere by its nature still does: coroutines that `body` launches, blocks of ``co_blocking(_:)``,
///   async code, and the body of ``co_isolated(_:_:)`` where a Task runs it.
/// - If another coroutine keeps the thread for long, this one waits for it: no other worker takes it over.
/// - A generator whose body yields inside of it gets ``CoroutineError/yieldInsideScope``, because the next step may be
///   on any thread.
///
/// Does not check for cancellation; waits in `body` throw as usual. Suspends only if the coroutine was started
/// immediately on a thread that is not its own: then it first continues on its own.
///
/// - Throws: The error of `body`. Without calling it, ``CoroutineError/cannotPin`` on a dispatch queue, the main queue
///   included, because Dispatch gives a queue another thread each time; ``CoroutineError/notInCoroutine`` outside a
///   coroutine. Inside `body`, ``co_switch(to:)-(DispatchQueue)``, and `co_isolated` with an actor of another queue,
///   throw `cannotPin` as well.
@discardableResult
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_pinned<R>(_ body: () throws -> R) throws -> R {
  let (_, job) = try Carrier.requireJob()
  try job.requireOwnThread()
  return try job.whileBound {
    let isOutermost = job.keepThread()
    defer { if isOutermost { job.releaseThread() } }
    return try body()
  }
}

// MARK: - Handlers of a cancellation

/// Runs `body`, and calls `handler` once if the coroutine is cancelled meanwhile, or a deadline passes.
///
/// For what waits where no cancellation reaches it, a blocking call for example:
///
/// ```swift
/// try co_onCancel({ sqlite3_interrupt(database) }) {
///   try co_blocking { try query(database) }
/// }
/// ```
///
/// - `handler` is called at once if the coroutine is cancelled already; else while the coroutine waits, by the thread
///   that has found the cancellation; else by the coroutine itself, when `body` throws. So a body that computes or
///   blocks its thread is told late, and one that returns meanwhile is not.
/// - It is not called when `body` has ended: if it runs then, this call waits for it.
/// - Cancellations and deadlines from outside count, those of scopes and deadlines inside `body` do not. What a
///   `co_shield` around this call hides does not count either.
/// - `handler` must neither block nor suspend.
///
/// Does not suspend by itself, and does not check cancellation. A generator's body must not yield inside.
/// - Throws: The error of `body`; ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "use `withTaskCancellationHandler`")
public func co_onCancel<Output>(
  _ handler: @escaping @Sendable () -> Void,
  _ body: () throws -> Output
) throws -> Output {
  let (_, job) = try Carrier.runningJob()
  let hook = CancelHook(handler)
  // A frame that is never signalled, with an owner. The inspection that finds a cancellation outside of it calls the
  // owner (Cancellation.swift, `scopesToCancel`), on the job's scheduler or in its place.
  var frame = CancelFrame(.bound, inside: job.pointee.frames)
  return try withUnsafeMutablePointer(to: &frame) { frame in
    frame.pointee.owner = CancelFrame.Owner(
      object: UnsafeRawPointer(Unmanaged.passUnretained(hook).toOpaque()),
      error: { _ in CancellationError() },
      cancel: { object, _ in Unmanaged<CancelHook>.fromOpaque(object).takeUnretainedValue().fire() }
    )
    job.pointee.frames = frame
    defer {
      // A body that has moved to another queue has the same record.
      job.pointee.frames = frame.pointee.outer
      hook.end()
    }
    if job.cancellation(outside: frame) != nil { hook.fire() }
    do { return try body() } catch {
      // A suspension point that finds the cancellation itself throws it, and calls no owner.
      if job.cancellation(outside: frame) != nil { hook.fire() }
      throw error
    }
  }
}

/// Calls a handler at most once, and not after the end.
///
///   ARMED --fire--> CALLING --the handler has returned--> DONE
///     |                                                     |
///     +------------------------end--------------------------+--> (end waits while it is CALLING)
private final class CancelHook: Sendable {
  private let handler: @Sendable () -> Void
  // Not shared: in a world one thread runs everything, and a handler does not wait.
  private let state = Atomic<UInt8>(CancelHook.armed)
  private static let (armed, calling, done): (UInt8, UInt8, UInt8) = (0, 1, 2)
  /// The thread that calls the handler.
  // Not shared: as above.
  private let caller = Atomic<UInt>(0)

  init(_ handler: @escaping @Sendable () -> Void) { self.handler = handler }

  func fire() {
    let (isMine, _) = state.compareExchange(
      expected: Self.armed,
      desired: Self.calling,
      ordering: .acquiringAndReleasing
    )
    guard isMine else { return }
    caller.store(UInt(pthread_self()), ordering: .relaxed)
    handler()
    state.store(Self.done, ordering: .releasing)
  }

  func end() {
    let (wasArmed, _) = state.compareExchange(
      expected: Self.armed,
      desired: Self.done,
      ordering: .acquiringAndReleasing
    )
    if wasArmed { return }
    // A handler that has thrown the coroutine out of its own call would wait for itself.
    var wait = ShortWait()
    while state.load(ordering: .acquiring) == Self.calling, caller.load(ordering: .relaxed) != UInt(pthread_self()) {
      wait.pause()
    }
  }
}
