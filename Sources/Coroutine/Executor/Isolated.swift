import Synchronization

/// Runs `body` isolated to `actor`, in straight line.
///
/// - If the actor's executor is a ``CoroutineExecutor``, no Task is involved: the coroutine moves to the actor's queue
///   if it is on another one, runs `body` there, and moves back. On the actor's own queue it calls `body` at once.
/// - If the calling code is isolated to the actor already, as a coroutine of the main queue is to the main actor, it
///   calls `body` at once.
/// - Otherwise a Task runs `body`, outside any coroutine: functions that wait throw ``CoroutineError/notInCoroutine``
///   in it. If the actor is busy, the coroutine suspends until `body` has run there.
///
/// In the first two cases `body` may wait with the verbs of coroutines. While it waits:
/// - If `reentrant` is true, other code may use the actor, as after an `await`.
/// - If `reentrant` is false, no other code uses the actor until `body` has returned. This holds for all actors of the
///   queue, because they share an executor: calls of their methods, and other bodies, wait until then.
///   - Bodies begin in the order of their calls, and calls of the actor's methods that have waited for a body come
///     before the next exclusive one. So a reentrant body must not wait for a coroutine that needs the actor
///     exclusively.
///   - `body` may call the actor by ``co_await(_:)-(()->Output)`` while it is on the actor's queue. A call from another
///     queue waits until `body` has returned, and so do child tasks of a call: `body` must not wait for those.
///   - Code that uses `assumeIsolated` in other coroutines of the queue is not excluded.
///
/// ```swift
/// try co_isolated(ledger, reentrant: false) { ledger in
///   ledger.balance -= amount
///   try co_await(bank.transfer(amount))    // no other code sees the ledger in between
///   ledger.transfers += 1
/// }
/// ```
///
/// Suspends unless the actor is reached at once. If the coroutine is cancelled before `body` begins, also by a
/// deadline, it throws at once, on its own queue, although the actor stays busy, and `body` never runs. Once `body` has
/// begun, the call ends after it: a cancellation then ends the waits in `body`, and what `body` returns is the result.
///
/// A call that is given up leaves something behind, until the actor's queue comes to it or the actor is free: an entry
/// of some hundred bytes, or a Task if the actor has no ``CoroutineExecutor``. So a loop that gives up and tries again
/// needs more and more memory as long as that queue is blocked, or that actor busy.
///
/// - Returns: The value that `body` returns.
/// - Throws: The error of `body`; the cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine;
///   ``CoroutineError/wouldDeadlock`` if `reentrant` is false and the actor's executor is not a ``CoroutineExecutor``,
///   or the coroutine is in a reentrant body of the same queue, which would have to end first;
///   ``CoroutineError/cannotPin`` inside ``co_pinned(_:)``, if the coroutine would have to move.
@discardableResult
@available(*, noasync, message: "call the actor with `await`")
public func co_isolated<A: Actor, R>(
  _ actor: A,
  reentrant: Bool = true,
  _ body: (isolated A) throws -> R
) throws -> R {
  let (_, job) = try Carrier.beginWaiting()
  // The isolation is the coroutine's. A generator's body must leave it before it yields.
  return try job.whileBound { try Isolation.reach(actor, reentrant, job, body) }
}

/// The ways in which co_isolated reaches an actor.
enum Isolation {
  static func reach<A: Actor, R>(
    _ actor: A,
    _ reentrant: Bool,
    _ job: JobRef,
    _ body: (isolated A) throws -> R
  ) throws -> R {
    let current = job.pointee.scheduler.load(ordering: .relaxed)
    let executor = actor.unownedExecutor
    let own = current._withUnsafeGuaranteedRef { SerialIdentity.scheduler(of: executor, like: $0.serialIdentity) }
    guard let own else {
      guard reentrant else { throw CoroutineError.wouldDeadlock(because: .foreignExecutor) }
      if current._withUnsafeGuaranteedRef({ isIsolated(to: executor, on: $0) }) {
        return try assume(actor, body)
      }
      return try self.await(actor, body)
    }
    // A coroutine that was started immediately runs outside its queue's drain until it first suspends.
    if current.toOpaque() == Unmanaged.passUnretained(own).toOpaque(), own.isRunningHere {
      return try enter(own, actor, reentrant, body)
    }
    return try visit(own, actor, reentrant, body)
  }

  /// Whether a coroutine of `current` is isolated to a foreign executor.
  ///
  /// The executor of the main actor cannot tell on Linux. It is the main queue, which a program cannot replace there
  /// (Swift 6.3), and a coroutine of that queue runs in a drain on it.
  static func isIsolated(to executor: UnownedSerialExecutor, on current: Scheduler) -> Bool {
    guard let serial = SerialIdentity.object(of: executor) else { return false }
    if serial === SerialIdentity.object(of: MainActor.sharedUnownedExecutor) {
      return current.isOfMainQueue && current.isRunningHere
    }
    return serial.isIsolatingCurrentContext() == true
  }

  /// Calls `body` as isolated to the actor; the caller guarantees the isolation.
  static func assume<A: Actor, R>(_ actor: A, _ body: (isolated A) throws -> R) throws -> R {
    try withoutActuallyEscaping(body) { try withoutIsolation($0)(actor) }
  }

  /// Returns `body` as a function that its caller calls where it is isolated to the actor already.
  // Sound because isolation is checked by the compiler, and does not change how a function is called.
  private static func withoutIsolation<A: Actor, R>(
    _ body: @escaping (isolated A) throws -> R
  ) -> (A) throws -> R {
    unsafeBitCast(body, to: ((A) throws -> R).self)
  }

  /// Runs `body` in a Task that is isolated to the actor, unless the coroutine is cancelled before it begins.
  ///
  /// `body` and the outcome stay in this frame, which the Task reaches through `call` only (AsyncCall.swift, 1 and 3).
  static func await<A: Actor, R>(_ actor: A, _ body: (isolated A) throws -> R) throws -> R {
    try withoutActuallyEscaping(body) { body in
      try withUnsafePointer(to: withoutIsolation(body)) { body in
        // Sound because only the Task uses the body and its captures until the call has ended.
        nonisolated(unsafe) let body = body
        return try AsyncCall.outcome(toEnd: false) { call in
          Task.immediate(priority: call.priority, executorPreference: call.executor) { await run(actor, body, call) }
        }
      }
    }
  }

  private static func run<A: Actor, R>(
    _ actor: isolated A,
    _ body: UnsafePointer<(A) throws -> R>,
    _ call: AsyncCall
  ) {
    guard call.beginBody() else { return call.unpin() }
    // `hide` has hidden the coroutine, so `body` cannot wait in it.
    call.end(result(actor, body))
  }

  /// Calls a body that is in the coroutine's frame.
  ///
  /// Not inlined: its last use of the body is over when it returns.
  @inline(never)
  private static func result<A: Actor, R>(
    _ actor: A,
    _ body: UnsafePointer<(A) throws -> R>
  ) -> Result<R, any Error> {
    Result { try body.pointee(actor) }
  }

  /// Begins a body inside the scheduler's drain, and runs it.
  static func enter<A: Actor, R>(
    _ scheduler: Scheduler,
    _ actor: A,
    _ reentrant: Bool,
    _ body: (isolated A) throws -> R
  ) throws -> R {
    let (_, job) = try Carrier.requireJob()
    if scheduler.exclusion.owner == job { return try assume(actor, body) }
    if reentrant { return try enterReentrant(scheduler, job) { try assume(actor, body) } }
    guard !scheduler.exclusion.hasBody(of: job) else {
      throw CoroutineError.wouldDeadlock(because: .holdsActor)
    }
    try scheduler.beginExclusive(job)
    return try leaving(scheduler, { scheduler.endExclusive() }, { try assume(actor, body) })
  }

  private static func enterReentrant<R>(_ scheduler: Scheduler, _ job: JobRef, _ body: () throws -> R) throws -> R {
    var entry = ReentrantBody(job: job)
    return try withUnsafeMutablePointer(to: &entry) { entry in
      try scheduler.begin(entry)
      return try leaving(scheduler, { scheduler.end(entry) }, body)
    }
  }

  /// Moves the running coroutine to `scheduler`, which may be its own, runs `body` in its drain, and moves it back.
  ///
  /// If the coroutine is cancelled before it has arrived and the body has begun, it throws, where it was.
  static func visit<A: Actor, R>(
    _ scheduler: Scheduler,
    _ actor: A,
    _ reentrant: Bool,
    _ body: (isolated A) throws -> R
  ) throws -> R {
    let (_, job) = try Carrier.requireJob()
    var own = ReentrantBody(job: job)
    return try withUnsafeMutablePointer(to: &own) { own in
      let entry = BodyEntry(job, to: scheduler, body: reentrant ? own : nil)
      return try switching(to: entry) {
        guard entry.hasBegun else {
          try job.checkCancelled()
          return try enter(scheduler, actor, reentrant, body)
        }
        return try leaving(scheduler, { reentrant ? scheduler.end(own) : scheduler.endExclusive() }) {
          try job.checkCancelled()
          return try assume(actor, body)
        }
      }
    }
  }

  /// Runs `body`, then `leave` inside the scheduler's drain, even if `body` has moved the coroutine to another queue.
  private static func leaving<R>(_ scheduler: Scheduler, _ leave: () -> Void, _ body: () throws -> R) throws -> R {
    defer { finish(scheduler, leave) }
    return try body()
  }

  private static func finish(_ scheduler: Scheduler, _ leave: () -> Void) {
    if scheduler.isRunningHere { return leave() }
    // The coroutine returns afterwards to the queue to which `body` has moved it.
    move("to the actor whose body it leaves") {
      let (_, job) = try Carrier.requireJob()
      try switching(to: SwitchEntry(job, to: scheduler)) { leave() }
    }
  }

  /// Calls `move`, which nothing ends early: the coroutine has nowhere else to go.
  ///
  /// Neither queue refuses the coroutine, which has been on both. If one did, an actor would be held for ever, or the
  /// caller would continue on a queue that is not its own. So a refusal ends the process.
  private static func move(_ goal: StaticString, _ move: () throws -> Void) {
    do { try co_shield(move) } catch {
      // A forked child is outside of the coroutine, which has stayed in the parent with its queues.
      if !ForkedChild.isHere { misuse("a coroutine in co_isolated could not go back \(goal): \(error)") }
    }
  }

  /// Moves the running coroutine to the destination of `entry`, calls `body` in its drain, and moves it back.
  private static func switching<R>(to entry: SwitchEntry, _ body: () throws -> R) throws -> R {
    let (carrier, job) = try Carrier.requireJob()
    try job.requireMovable()
    let home = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
    try entry.destination._withUnsafeGuaranteedRef {
      try Host.requireReal(on: $0) { "an actor on a queue outside of its world" }
    }
    // Retained, because this job may be the only one that holds the queue.
    let anchor = home.currentAnchor
    // Again: the actor's executor is users' code, and may have cancelled the coroutine.
    try job.checkCancelled()
    try Carrier.switchOver(carrier, entry, holding: nil)
    defer {
      if !isOn(home, job) { move("to its own queue") { try switchBack(to: home, anchor) } }
    }
    return try body()
  }

  private static func switchBack(to home: Scheduler, _ anchor: Anchor?) throws {
    let (carrier, job) = try Carrier.requireJob()
    try Carrier.switchOver(carrier, SwitchEntry(job, to: home), holding: anchor)
  }

  private static func isOn(_ scheduler: Scheduler, _ job: JobRef) -> Bool {
    job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(scheduler).toOpaque()
  }
}
