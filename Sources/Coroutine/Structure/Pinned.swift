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
