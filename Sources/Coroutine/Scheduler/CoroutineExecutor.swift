import Synchronization

/// Runs Swift Concurrency's jobs on the scheduler of a dispatch queue, between its coroutines: one at a time, never
/// beside a coroutine of that queue.
///
/// - As a task executor preference it makes a Task's code, and that of default actors that the Task calls, run on the
///   queue's scheduler without a hop.
/// - As an actor's `unownedExecutor` it makes the actor live there: a coroutine of that queue reaches the actor by
///   ``co_isolated(_:_:)``, or by `assumeIsolated`, without a hop.
///
/// ```swift
/// actor Ledger {
///   private let executor: CoroutineExecutor
///   nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
///   init(on queue: DispatchQueue) { executor = CoroutineExecutor(queue) }
/// }
/// ```
///
/// Two executors of one queue are equal, and Swift takes them for the same serial executor. An executor keeps its queue
/// alive; an actor must hold its executor. Enqueueing a job never suspends, allocates nothing, and starts no drain if
/// one is under way; any thread. The code of a job is outside any coroutine: functions that wait throw
/// ``CoroutineError/notInCoroutine`` there. If other coroutines of the queue are ready, they take turns with the jobs.
public final class CoroutineExecutor: SerialExecutor, TaskExecutor, Equatable {
  let scheduler: Scheduler

  init(_ scheduler: Scheduler, _ anchor: Anchor?) {
    self.scheduler = scheduler
    scheduler.pin(anchor)
  }

  deinit { scheduler.unpin() }

  /// The executor of the queue that the calling coroutine is bound to; nil on the worker pool and outside any
  /// coroutine.
  ///
  /// Never suspends.
  public static var current: CoroutineExecutor? {
    guard let job = Carrier.current?.pointee.job else { return nil }
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
    return scheduler.readyQueue.pointee.workerPool == nil ? CoroutineExecutor(scheduler, scheduler.currentAnchor) : nil
  }

  /// Enqueues a job of Swift Concurrency on the queue's scheduler.
  ///
  /// Any thread; never suspends.
  public func enqueue(_ job: consuming ExecutorJob) {
    scheduler.enqueue(UnownedJob(job), UInt(bitPattern: Unmanaged.passRetained(self).toOpaque()))
  }

  /// The reference by which an actor names this executor.
  public func asUnownedSerialExecutor() -> UnownedSerialExecutor { scheduler.serialIdentity.asUnownedSerialExecutor() }

  /// The reference by which a Task names this executor.
  public func asUnownedTaskExecutor() -> UnownedTaskExecutor { UnownedTaskExecutor(ordinary: self) }

  /// Whether the calling code is a coroutine of the queue, or a Swift job that the queue's scheduler runs.
  ///
  /// False in other blocks of the queue.
  public func isIsolatingCurrentContext() -> Bool? { scheduler.isRunningHere }

  /// Whether two executors belong to the same queue.
  public func isSameExclusiveExecutionContext(other: CoroutineExecutor) -> Bool { self == other }

  /// Whether two executors belong to the same queue.
  public static func == (left: CoroutineExecutor, right: CoroutineExecutor) -> Bool {
    left.scheduler === right.scheduler
  }
}
