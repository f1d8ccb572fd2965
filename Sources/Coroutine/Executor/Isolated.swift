import Synchronization

/// Runs `body` isolated to `actor`, in straight line.
///
/// - If the actor's executor is a ``CoroutineExecutor``, no Task is involved: the coroutine moves to the actor's queue
///   if it is on another one, runs `body` there, and moves back. On the actor's own queue it calls `body` at once,
///   unless a method of an actor of the queue, or another such body, has started it and is still on the stack.
/// - If the calling code is isolated to the actor already, as a coroutine of the main queue is to the main actor, it
///   calls `body` at once.
/// - Otherwise a Task runs `body`, outside any coroutine: functions that wait throw ``CoroutineError/notInCoroutine``
///   in it. If the actor is busy, the coroutine suspends until `body` has run there.
///
/// In the first two cases `body` may wait with the verbs of coroutines. While it waits, other code may use the actor,
/// as after an `await`. An actor that must not be re-entered takes a ``FairMutex``, which each of its users locks.
///
/// ```swift
/// try co_isolated(account) { account in account.balance += 1 }
/// ```
///
/// Suspends unless the actor is reached at once. If the coroutine is cancelled before `body` begins, also by a
/// deadline, it throws at once, on its own queue, although the actor stays busy, and `body` never runs. Once `body` has
/// begun, the call ends after it: a cancellation then ends the waits in `body`, and what `body` returns is the result.
///
/// A cancelled call leaves an arrival of some eighty bytes in the actor's queue until the queue reaches it, or a Task
/// if the actor has no ``CoroutineExecutor``.
///
/// - Returns: The value that `body` returns.
/// - Throws: The error of `body`; the cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine;
///   ``CoroutineError/cannotPin`` inside ``co_pinned(_:)``, if the coroutine would have to move.
@discardableResult
@available(*, noasync, message: "call the actor with `await`")
public func co_isolated<A: Actor, R>(_ actor: A, _ body: (isolated A) throws -> R) throws -> R {
  let (_, job) = try Carrier.beginWaiting()
  // The isolation is the coroutine's. A generator's body must leave it before it yields.
  return try job.whileBound { try Isolation.reach(actor, job, body) }
}

/// The ways in which co_isolated reaches an actor.
enum Isolation {
  static func reach<A: Actor, R>(_ actor: A, _ job: JobRef, _ body: (isolated A) throws -> R) throws -> R {
    let current = job.pointee.scheduler.load(ordering: .relaxed)
    let executor = actor.unownedExecutor
    let own = current._withUnsafeGuaranteedRef { SerialIdentity.scheduler(of: executor, like: $0.serialIdentity) }
    guard let own else {
      let isThere = current._withUnsafeGuaranteedRef { SerialIdentity.isIsolated(to: executor, on: $0) }
      return isThere ? try assume(actor, body) : try self.await(actor, body)
    }
    // A coroutine that was started immediately runs outside its queue's drain until it first suspends.
    if current.toOpaque() == Unmanaged.passUnretained(own).toOpaque(), own.isRunningHere, own.insideDepth == 0 {
      return try assume(actor, body)
    }
    return try visit(own, actor, body)
  }

  /// Calls `body` as isolated to the actor; the caller guarantees the isolation.
  private static func assume<A: Actor, R>(_ actor: A, _ body: (isolated A) throws -> R) throws -> R {
    try withoutActuallyEscaping(body) { try withoutIsolation($0)(actor) }
  }

  /// Returns `body` as a function that its caller calls where it is isolated to the actor already.
  // Sound because isolation is checked by the compiler, and does not change how a function is called.
  private static func withoutIsolation<A: Actor, R>(_ body: @escaping (isolated A) throws -> R) -> (A) throws -> R {
    unsafeBitCast(body, to: ((A) throws -> R).self)
  }

  /// Runs `body` in a Task that is isolated to the actor, unless the coroutine is cancelled before it begins.
  ///
  /// `body` and the outcome stay in this frame, which the Task reaches through `call` only (AsyncCall.swift, 1 and 3).
  private static func await<A: Actor, R>(_ actor: A, _ body: (isolated A) throws -> R) throws -> R {
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

  /// Moves the running coroutine to `own`, the actor's scheduler, runs `body` in its drain, and moves it back.
  ///
  /// If the coroutine is cancelled before `body` has begun, it throws, where it was.
  private static func visit<A: Actor, R>(_ own: Scheduler, _ actor: A, _ body: (isolated A) throws -> R) throws -> R {
    let (carrier, job) = try Carrier.requireJob()
    try job.requireMovable()
    let home = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
    try Host.requireReal(on: own) { "an actor on a queue outside of its world" }
    // Retained, because this job may be the only one that holds the queue.
    let anchor = home.currentAnchor
    // Again: the actor's executor is users' code, and may have cancelled the coroutine.
    try job.checkCancelled()
    try Carrier.switchOver(carrier, job, to: own, holding: nil)
    defer {
      if job.pointee.scheduler.load(ordering: .relaxed).toOpaque() != Unmanaged.passUnretained(home).toOpaque() {
        goBack(to: home, anchor)
      }
    }
    try job.checkCancelled()
    return try assume(actor, body)
  }

  /// Moves the running coroutine to its own queue, where nothing ends the wait early: it has nowhere else to go.
  ///
  /// The queue, on which the coroutine has been, does not refuse it. If it did, the caller would continue on a queue
  /// that is not its own. So a refusal ends the process.
  private static func goBack(to home: Scheduler, _ anchor: Anchor?) {
    do {
      try co_shield {
        let (carrier, job) = try Carrier.requireJob()
        try Carrier.switchOver(carrier, job, to: home, holding: anchor)
      }
    } catch {
      misuse("a coroutine in co_isolated could not go back to its own queue: \(error)")
    }
  }
}
