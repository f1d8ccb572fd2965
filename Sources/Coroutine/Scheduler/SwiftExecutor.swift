import Synchronization

// A scheduler as an executor of Swift Concurrency. Its Swift jobs run on the driver's stack, between its coroutine
// jobs, one at a time. Their code is outside any coroutine.
//
// Order. Swift jobs run in the order of their enqueueing by one thread: a job that is enqueued on the scheduler's own
// carrier does not overtake the messages of the inbox. On a worker it always goes through the inbox, which may seem
// empty while a rescuer has its messages in its hands (Inbox.takeOut).
//
// Fairness. Of the handlers and Swift jobs that are queued, the driver runs at most as many as it may resume coroutine
// jobs before it reads the clock. Then it resumes at least one coroutine job. All kinds count for the time slice.
//
// Isolation. Actors live on the scheduler. Three kinds of code are isolated to them: serial jobs, bodies of co_isolated
// (Executor/Isolated.swift), and code that assumes it. A serial job, and a body, may start a coroutine in the drain, by
// an immediate start. That coroutine would see an actor in the middle of a synchronous part of its code. So
// `insideDepth` counts such code, and a body begins at once only if it is 0. Otherwise its coroutine arrives by the
// drain (Arrival.swift), below which there is no such code.
//
// Identities. Swift compares executors by address. All CoroutineExecutors of one scheduler name its SerialIdentity as
// the serial executor, so Swift takes them for one. As a task executor, a CoroutineExecutor names itself; a coroutine
// that calls async code names the scheduler. To name one of the three needs no allocation.
//
// Lifetime. While Swift jobs can be enqueued, a pin keeps the scheduler and its queue in memory: that of a
// CoroutineExecutor, or that of an AsyncCall until its Task has ended (Bridge/AsyncCall.swift). A job that is enqueued
// later runs on Swift's global executor.

extension Scheduler: TaskExecutor {
  @usableFromInline
  func enqueue(_ job: consuming ExecutorJob) { enqueue(UnownedJob(job), SwiftJobHeader.task) }

  @usableFromInline
  func asUnownedTaskExecutor() -> UnownedTaskExecutor { UnownedTaskExecutor(ordinary: self) }

  /// The executor that coroutines of the scheduler prefer for the Tasks that they await.
  ///
  /// A worker's coroutines may continue on another worker, so their Tasks may run on any.
  var taskExecutor: any TaskExecutor {
    guard let pool = readyQueue.pointee.workerPool else { return self }
    return pool._withUnsafeGuaranteedRef { $0 }
  }

  /// Enqueues a Swift job; `executor` says how to run it.
  ///
  /// Any thread. Starts a drain if none is under way.
  func enqueue(_ job: UnownedJob, _ executor: UInt) {
    let job = SwiftJobRef(job)
    job.pointee.executor = executor
    Events.note(.taskReady, nil, UInt64(job.pointee.task))
    if isRunningHere, worker == nil, !inbox.hasMessages {
      work.append(.swiftJob(job))
    } else if !host.admit({ push(.swiftJob(job)) }) {
      Self.runElsewhere(job)
    }
  }

  /// Runs a Swift job.
  ///
  /// Called in the scheduler's drain.
  func perform(_ job: SwiftJobRef) {
    // Read before the job runs, which may destroy it.
    let (executor, task) = (job.pointee.executor, UInt64(job.pointee.task))
    Events.note(.taskRun, nil, task)
    defer { Events.note(.taskLeave, nil, task) }
    switch executor {
    case SwiftJobHeader.task:
      UnownedJob(job).runSynchronously(on: asUnownedTaskExecutor())
    case SwiftJobHeader.serial:
      whileInside { UnownedJob(job).runSynchronously(on: serialIdentity.asUnownedSerialExecutor()) }
    default:
      // The preference of the job's Task, retained by the job. Runs under this executor; under any other identity Swift
      // would enqueue the job again.
      let preferred = Unmanaged<CoroutineExecutor>.fromOpaque(UnsafeRawPointer(bitPattern: executor)!)
      preferred._withUnsafeGuaranteedRef { UnownedJob(job).runSynchronously(on: $0.asUnownedTaskExecutor()) }
      preferred.release()
    }
    ForkedChild.mayGoOn()
  }

  /// Runs code on top of isolated code that is on the stack: no body of co_isolated begins meanwhile.
  private func whileInside(_ body: () -> Void) {
    insideDepth += 1
    body()
    insideDepth -= 1
  }

  /// Runs the first part of a coroutine that `job` has started in this scheduler's drain.
  func runStarted(by job: JobRef, _ body: () -> Void) {
    if job.isBound { whileInside(body) } else { body() }
  }

  /// Gives all Swift jobs to the global executor, because the scheduler's queue was released.
  func runSwiftJobsElsewhere() {
    for _ in 0..<work.count {
      switch work.popFirst() {
      case .swiftJob(let job): Self.runElsewhere(job)
      case .some(let handler): work.append(handler)
      case nil: break
      }
    }
  }

  private static func runElsewhere(_ job: SwiftJobRef) {
    let executor = job.pointee.executor
    globalConcurrentExecutor.enqueue(UnownedJob(job))
    if executor > SwiftJobHeader.serial {
      Unmanaged<CoroutineExecutor>.fromOpaque(UnsafeRawPointer(bitPattern: executor)!).release()
    }
  }
}

/// A scheduler as a serial executor: the executor of actors that live on it.
///
/// The scheduler owns it. Swift holds it unowned; the actor's CoroutineExecutor holds the scheduler.
@usableFromInline
final class SerialIdentity: SerialExecutor {
  // Sound because it is used only while the scheduler lives, which owns it.
  unowned(unsafe) let scheduler: Scheduler

  init(_ scheduler: Scheduler) { self.scheduler = scheduler }

  @usableFromInline
  func enqueue(_ job: consuming ExecutorJob) { scheduler.enqueue(UnownedJob(job), SwiftJobHeader.serial) }

  @usableFromInline
  func asUnownedSerialExecutor() -> UnownedSerialExecutor { UnownedSerialExecutor(ordinary: self) }

  @usableFromInline
  func isIsolatingCurrentContext() -> Bool? { scheduler.isRunningHere }

  /// The scheduler behind an actor's executor; nil if the executor is none of this library's.
  // Sound because an executor is two words, the object and its type's witness table; equal tables mean equal types.
  static func scheduler(of executor: UnownedSerialExecutor, like known: SerialIdentity) -> Scheduler? {
    let (object, table) = unsafeBitCast(executor, to: (UInt, UInt).self)
    let (_, ours) = unsafeBitCast(known.asUnownedSerialExecutor(), to: (UInt, UInt).self)
    guard table == ours, let address = UnsafeRawPointer(bitPattern: object) else { return nil }
    return Unmanaged<SerialIdentity>.fromOpaque(address)._withUnsafeGuaranteedRef { $0.scheduler }
  }
}

extension SerialIdentity {
  /// The object behind an actor's executor; nil for a default actor, which is its own executor and has no such object.
  ///
  /// `asSerialExecutor()` does not tell default actors apart, and its result crashes when it is called.
  // Sound because the second word, without the bits that say how executors are compared, is the witness table.
  static func object(of executor: UnownedSerialExecutor) -> (any SerialExecutor)? {
    let (object, table) = unsafeBitCast(executor, to: (UInt, UInt).self)
    guard table & ~3 != 0 else { return nil }
    return unsafeBitCast((object, table & ~3), to: (any SerialExecutor).self)
  }
}

extension SerialIdentity {
  /// Whether a coroutine of `current` is isolated to a foreign executor.
  ///
  /// The executor of the main actor cannot tell on Linux. It is the main queue, which a program cannot replace there
  /// (Swift 6.3), and a coroutine of that queue runs in a drain on it.
  static func isIsolated(to executor: UnownedSerialExecutor, on current: Scheduler) -> Bool {
    guard let serial = object(of: executor) else { return false }
    if serial === object(of: MainActor.sharedUnownedExecutor) {
      return current.isOfMainQueue && current.isRunningHere
    }
    return serial.isIsolatingCurrentContext() == true
  }
}

extension SwiftJobRef {
  // Sound because an UnownedJob is the job's address.
  init(_ job: UnownedJob) { self = unsafeBitCast(job, to: SwiftJobRef.self) }
}

extension UnownedJob {
  // Sound for the same reason.
  init(_ job: SwiftJobRef) { self = unsafeBitCast(job, to: UnownedJob.self) }

  /// Runs the job as Swift's own threads do: on behalf of no executor, so that the Task may go on in idle actors.
  // Sound because an executor is two words, and no executor is two zeros.
  func runWithoutExecutor() {
    runSynchronously(on: unsafeBitCast((UInt(0), UInt(0)), to: UnownedSerialExecutor.self))
  }
}

// MARK: - The executor of programs

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
