import Synchronization

/// Runs blocking code (file access, DNS, databases, long computations) on a pool of threads of its own, and returns what it
/// returns or throws what it throws.
///
/// Suspends the calling coroutine and never its thread. The end of `body` resumes it. Cancelled, it throws at once: a body
/// that has not started by then is released without having run, on the calling coroutine; one that runs cannot be stopped,
/// ends unobserved, and its result is released on the thread it ran on. Cancelled before the call, it throws without
/// taking `body` into the pool. Off a coroutine it throws ``CoroutineError/notInCoroutine``.
///
/// Bodies start in the order of the calls. The pool has as many threads as are wanted at once, up to
/// ``CoroutineRuntime/blockingThreadLimit``; beyond that bodies queue. A thread that had nothing to do for ten seconds ends.
/// Where not one thread can be started, ``CoroutineError/outOfStacks(_:)`` says which limit was met.
///
/// The bindings of ``CoroutineLocal`` in force here are in force in `body`. Swift's task-locals are not: read them before.
/// A body that ends its thread (`pthread_exit`, or a `pthread_cancel` from elsewhere) makes it throw ``BlockingThreadEnded``; the pool
/// starts another thread. Swift code has no cleanups for that: what the body's frames hold at that point is never released, locks
/// that they hold stay locked, and their `defer` blocks do not run.
///
/// `body` runs outside of any coroutine: it may launch some, but must not wait for them with the suspending verbs, which
/// throw ``CoroutineError/notInCoroutine`` there. Its stack has 1 MiB, and signals sent to the process pass its thread by.
@discardableResult
public func co_blocking<Output: Sendable>(_ body: sending @escaping () throws -> Output) throws -> Output {
  try BlockingPool.shared.run(consume body)
}

/// The body of a ``co_blocking(_:)`` ended its thread (`pthread_exit`) or had it ended (`pthread_cancel`) instead of returning.
///
/// What the frames of the body held is lost; the pool has as many threads as before.
public struct BlockingThreadEnded: Error, CustomStringConvertible {
  /// Creates the error.
  public init() {}
  /// One sentence.
  public var description: String {
    "the body of a co_blocking ended its thread with pthread_exit, or somebody cancelled the thread with pthread_cancel; "
      + "what the body held is lost: let it return or throw instead"
  }
}

extension CoroutineRuntime {
  /// The most threads that ``co_blocking(_:)`` uses at once: 64, or four for each processor where that is more.
  ///
  /// May be set at any time, from any thread; never suspends. More: queued bodies start at once. Less: idle threads end, and
  /// busy ones when their bodies do. Less than one counts as one.
  public static var blockingThreadLimit: Int {
    get { BlockingPool.shared.counts.limit }
    set { BlockingPool.shared.setLimit(newValue) }
  }
}

extension BlockingPool {
  /// Suspends the running coroutine until one of the pool's threads has run `body`.
  func run<Output: Sendable>(_ body: sending @escaping () throws -> Output) throws -> Output {
    let (_, job) = try Carrier.requireJob()
    try job.checkCancelled()
    // A simulation must not take this wait for a deadlock. Both calls are made on its own turn, so it never sees the work
    // gone before it has seen the wake.
    let host = job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.host }
    host.beginOutsideWork()
    defer { host.endOutsideWork() }

    // Handed on by `consume`, so that this frame does not keep alive while it is parked what the body has released.
    let cell = SuspendCell<Output>(job)
    let work = BlockingBody(cell, locals: LocalBinding.current, consume body)
    submit(work)
    if let delivered = try cell.wait(.blocking) { return try delivered.get() }
    if withdraw(work) { work.drop() }
    throw Carrier.current?.pointee.job?.cancellation() ?? CancellationError()
  }
}
