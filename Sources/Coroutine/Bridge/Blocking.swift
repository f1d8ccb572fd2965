import Synchronization

/// Runs blocking code on a thread of a separate pool, and returns its result or throws its error.
///
/// For file access, databases, long computations. Suspends the calling coroutine, never its thread. The end of
/// `body` resumes the coroutine.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/RecipeBoundarySnippets.swift -->
/// ```swift
/// try co_blocking { [descriptor] in
///   var bytes = [UInt8](repeating: 0, count: count)
///   let got = Glibc.read(descriptor, &bytes, count)
///   if got < 0 { throw ErrnoError(errno) }
///   return Array(bytes.prefix(got))
/// }
/// ```
///
/// - If the coroutine is cancelled, the call throws at once. A body that has not started is released by the calling
///   coroutine, and does not run. A running body cannot be stopped: it runs to its end, and what it returns or throws
///   is released on its thread. If that is a descriptor or a handle, which must be closed, use
///   ``co_blocking(onUndelivered:_:)``. If the coroutine was cancelled before the call, `body` does not run.
/// - Bodies start in the order of the calls. The pool has as many threads as are needed at once, up to
///   ``CoroutineRuntime/blockingThreadLimit``; further bodies are queued. A thread ends after ten seconds without work.
///   If no thread can be started, and none is left that could run the body, ``CoroutineError/outOfStacks(_:)`` names
///   the limit.
/// - The current bindings of ``CoroutineLocal`` and of task-locals hold in `body`.
/// - If a body ends its thread (`pthread_exit`, or a `pthread_cancel` from elsewhere), the call throws
///   ``CoroutineError/blockingThreadEnded``, and the pool starts another thread. Swift code has no cleanup for that:
///   objects that the body's frames hold are never released, locks that they hold stay locked, and their `defer` blocks
///   do not run.
/// - `body` runs outside any coroutine. It may launch coroutines, but must not wait for them with the suspending verbs,
///   which throw ``CoroutineError/notInCoroutine`` there. Its stack has 1 MiB. Its thread does not receive signals that
///   are sent to the process.
/// - `body` may wait with ``Job/blockingWait()`` and ``Promise/blockingWait()``, also for coroutines that call
///   co_blocking. While it waits, its thread does not count towards the limit, so another thread may take its place.
///   1,024 threads may wait so at once; a further wait throws ``CoroutineError/tooManyBlockedThreads(_:)``. Other locks
///   and semaphores keep the thread.
///
/// Throws ``CoroutineError/notInCoroutine`` outside a coroutine.
@discardableResult
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_blocking<Output: Sendable>(_ body: sending @escaping () throws -> Output) throws -> Output {
  try BlockingPool.shared.run(consume body)
}

/// Runs blocking code on a thread of a separate pool as ``co_blocking(_:)`` does, and gives back a value that comes too
/// late.
///
/// ```swift
/// let file = try co_blocking(onUndelivered: { close($0) }) { open(path, O_RDONLY) }
/// ```
///
/// Suspends until `body` has ended. If the coroutine is cancelled, or a deadline passes, the call throws at once, and a
/// running `body` continues.
///
/// - A value that `body` returns goes to one of two receivers, once: the caller, or `onUndelivered`. If the call
///   returns, `onUndelivered` is not called. If it throws, `onUndelivered` is called for every value that `body` still
///   returns, usually after the throw. A body that had not begun does not run, and returns nothing.
/// - `onUndelivered` runs on the blocking thread, directly after `body`, with the same bindings of ``CoroutineLocal``
///   and of task-locals. It may block. It is released on that thread; if the call returns, perhaps a moment later.
/// - An error that `body` throws too late goes to nobody: the caller has its own error, and there is nothing to give
///   back. A body whose late failure matters reports it itself.
/// - If `body` ends its thread (``CoroutineError/blockingThreadEnded``), it has returned nothing.
///
/// Throws ``CoroutineError/notInCoroutine`` outside a coroutine.
@discardableResult
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_blocking<R: Sendable>(
  onUndelivered: @escaping @Sendable (R) -> Void,
  _ body: consuming @escaping @Sendable () throws -> R
) throws -> R {
  try BlockingPool.shared.run(onUndelivered: onUndelivered, consume body)
}

extension CoroutineRuntime {
  /// The largest number of threads that run the bodies of ``co_blocking(_:)`` at once.
  ///
  /// A thread whose body is in ``Job/blockingWait()`` or ``Promise/blockingWait()`` does not count; when it returns,
  /// there may be more threads than the limit, until one of them ends its body.
  ///
  /// The default is 64, or four for each processor if that is more. May be set at any time, on any thread. Never
  /// suspends. A higher limit starts queued bodies at once. With a lower one, idle threads end, and busy threads end
  /// after their bodies. Less than one counts as one.
  public static var blockingThreadLimit: Int {
    get { BlockingPool.shared.counts.limit }
    set { BlockingPool.shared.setLimit(newValue) }
  }
}

extension BlockingPool {
  /// Suspends the running coroutine until a thread of the pool has run `body`.
  package func run<Output: Sendable>(
    onUndelivered: (@Sendable (Output) -> Void)? = nil,
    _ body: sending @escaping () throws -> Output
  ) throws -> Output {
    let (_, job) = try Carrier.requireJob()
    try job.checkCancelled()
    let host = job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.host }
    // Consumed, so that this frame, while parked, retains no object that the body has released.
    let cell = SuspendCell<Output>(job)
    let work = BlockingBody(
      cell,
      locals: LocalBinding.inherited()?.takeRetainedValue(),
      onUndelivered: onUndelivered,
      consume body
    )
    // A simulated world runs the body itself. If the body was dropped before, the call has no effect.
    let isSimulated = host.takesBlocking(job, { work.run() })
    if !isSimulated { submit(work) }
    return try cell.wait(.blocking) { if isSimulated || withdraw(work) { work.drop() } }.get()
  }
}
