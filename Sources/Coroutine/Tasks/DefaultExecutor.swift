internal import CCoroutineRuntime
import Synchronization
@_spi(ExperimentalCustomExecutors) @_spi(ExperimentalScheduling) import _Concurrency

// The default executor of the process: where the jobs of Tasks without an executor of their own go. It is replaced
// here and nowhere else, for two that need it: the worker pool (TasksOnWorkers.swift), and the worlds of async code in
// CoroutineTesting. They may come in either order, and each once.
//
//   a job, or a sleep  ->  an interceptor (worlds; a proof)  ->  the worker pool, if it is on  ->  the executor before
//
// Ways in. Swift 6.3 asks on Linux
//   - for a job: its hook, if it is set, else the default executor;
//   - for a sleep: the default executor alone, as a SchedulingExecutor. The hooks for delays are never called.
// So both are ours, and both lead to the same functions. The main executor stays as it is.
//
// While other threads enqueue. Swift stores the default executor as two words, the object and the witness table, and
// reads them without a lock. A thread that reads meanwhile may combine one of the old with one of the new. Both
// combinations do what one of the two executors does, because no function of either uses the object: those of
// DispatchGlobalTaskExecutor do not (Swift 6.3, disassembled), and those of ReplacedExecutor below call static ones.
// Neither object is ever released. So it may be replaced and put back as often as worlds begin and end. The hook is one
// word, and the two below are atomic.

/// What is asked first where a job goes; never released.
package final class JobInterceptor: Sendable {
  /// Takes a job, or returns false.
  let takes: @Sendable (UnownedJob) -> Bool
  /// Takes a job that is to run after that many nanoseconds, or returns false.
  let takesSleep: @Sendable (UnownedJob, _ nanoseconds: UInt64) -> Bool

  package init(
    _ takes: @escaping @Sendable (UnownedJob) -> Bool,
    sleep takesSleep: @escaping @Sendable (UnownedJob, _ nanoseconds: UInt64) -> Bool
  ) {
    self.takes = takes
    self.takesSleep = takesSleep
  }
}

/// The executor that replaces Swift's own.
private final class ReplacedExecutor: TaskExecutor, SchedulingExecutor, Sendable {
  func enqueue(_ job: consuming ExecutorJob) { DefaultExecutor.enqueue(UnownedJob(job)) }

  func enqueue<C: _Concurrency.Clock>(
    _ job: consuming ExecutorJob,
    after delay: C.Duration,
    tolerance: C.Duration?,
    clock: C
  ) {
    let job = UnownedJob(job)
    if let nanoseconds = DefaultExecutor.nanoseconds(delay), DefaultExecutor.sleep(job, nanoseconds) { return }
    guard let before = DefaultExecutor.clockBefore else { return DefaultExecutor.before.enqueue(job) }
    before.enqueue(ExecutorJob(job), after: delay, tolerance: tolerance, clock: clock)
  }

  func enqueue<C: _Concurrency.Clock>(
    _ job: consuming ExecutorJob,
    at instant: C.Instant,
    tolerance: C.Duration?,
    clock: C
  ) {
    let job = UnownedJob(job)
    let delay = clock.now.duration(to: instant)
    if let nanoseconds = DefaultExecutor.nanoseconds(delay), DefaultExecutor.sleep(job, nanoseconds) { return }
    guard let before = DefaultExecutor.clockBefore else { return DefaultExecutor.before.enqueue(job) }
    before.enqueue(ExecutorJob(job), at: instant, tolerance: tolerance, clock: clock)
  }
}

package enum DefaultExecutor {
  /// The executor that there was before.
  fileprivate static let before: any TaskExecutor = Task<Never, Never>.defaultExecutor
  /// The same for sleeps; kept, because a cast at each sleep costs more than the sleep's way here.
  fileprivate static let clockBefore = before as? any SchedulingExecutor
  /// What replaces it.
  package static let replacement: any TaskExecutor = {
    _ = before
    return ReplacedExecutor()
  }()

  static var isReplaced: Bool { Task<Never, Never>.defaultExecutor is ReplacedExecutor }

  /// The type of the executor that there was before.
  static var nameBefore: String { _typeName(type(of: before), qualified: true) }

  private enum Ours: ExecutorFactory {
    static var mainExecutor: any MainExecutor { MainActor.executor }
    static var defaultExecutor: any TaskExecutor { replacement }
  }
  private enum Before: ExecutorFactory {
    static var mainExecutor: any MainExecutor { MainActor.executor }
    static var defaultExecutor: any TaskExecutor { before }
  }

  // MARK: Who needs it

  /// The number of worlds that run, and of proofs: while there are some, the interceptor is asked.
  ///
  /// Changed under `lock`.
  /// Relaxed where a job asks: who enqueues one that the interceptor would take has it from a thread that has counted
  /// itself before.
  private static let interceptions = Atomic<Int>(0)
  /// Whether the worker pool takes what no interceptor takes; it does so for ever.
  ///
  /// Changed under `lock`.
  private static let usesPool = Atomic<Bool>(false)
  /// Held by a thread that changes the interceptor or the executor; a proof holds it to its end.
  private static let lock = ThreadLock()

  /// Replaces the executor until as many calls of `endIntercepting`, and returns whether it is replaced; any thread.
  ///
  /// Where no world runs, the program's Tasks take no way through this file.
  package static func beginIntercepting() -> Bool { lock.withLock { begin() } }
  package static func endIntercepting() { lock.withLock { end() } }

  private static func begin() -> Bool {
    if interceptions.add(1, ordering: .relaxed).oldValue == 0 { _createExecutors(factory: Ours.self) }
    return isReplaced
  }

  private static func end() {
    if interceptions.subtract(1, ordering: .relaxed).newValue > 0 || usesPool.load(ordering: .relaxed) { return }
    if isReplaced { _createExecutors(factory: Before.self) }
  }

  /// Lets the worker pool take jobs from now on; called between `beginIntercepting` and `endIntercepting`.
  static func usePool() { lock.withLock { usesPool.store(true, ordering: .releasing) } }

  /// Calls `body`, which replaces the main executor, while nothing replaces the default executor.
  package static func withExecutors(_ body: () -> Void) { lock.withLock(body) }

  // MARK: Where jobs go

  /// The interceptor, as an unmanaged reference; 0 for none.
  private static let interceptor = Atomic<UInt>(0)
  /// The interceptor, if it is to be asked.
  @inline(__always) private static var current: Unmanaged<JobInterceptor>? {
    if interceptions.load(ordering: .relaxed) == 0 { return nil }
    return UnsafeRawPointer(bitPattern: interceptor.load(ordering: .acquiring)).map(Unmanaged.fromOpaque)
  }

  /// The interceptors that are not asked any more: another thread may be in one, so they live on.
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var kept: [JobInterceptor] = []

  /// Makes `new` the interceptor, asked between `beginIntercepting` and `endIntercepting`; any thread.
  package static func intercept(by new: JobInterceptor) { lock.withLock { set(Unmanaged.passRetained(new)) } }

  /// Calls `body` while `make` intercepts; it is given the interceptor that there is.
  static func whileIntercepting(by make: (JobInterceptor?) -> JobInterceptor, _ body: () -> Void) {
    lock.withLock {
      let outer = current
      let new = make(outer?.takeUnretainedValue())
      kept.append(new)
      set(Unmanaged.passUnretained(new))
      body()
      set(outer)
    }
  }

  private static func set(_ new: Unmanaged<JobInterceptor>?) {
    interceptor.store(new.map { UInt(bitPattern: $0.toOpaque()) } ?? 0, ordering: .releasing)
  }

  /// Enqueues a job; any thread.
  static func enqueue(_ job: UnownedJob) {
    if let current, current._withUnsafeGuaranteedRef({ $0.takes(job) }) { return }
    enqueueElsewhere(job)
  }

  /// Enqueues a job that no interceptor takes.
  package static func enqueueElsewhere(_ job: UnownedJob) {
    if usesPool.load(ordering: .relaxed) {
      WorkerPool.shared.enqueue(job, SwiftJobHeader.ofNone)
    } else {
      before.enqueue(job)
    }
  }

  /// Enqueues a job after a time; returns false if the executor before must do that.
  fileprivate static func sleep(_ job: UnownedJob, _ nanoseconds: UInt64) -> Bool {
    if let current, current._withUnsafeGuaranteedRef({ $0.takesSleep(job, nanoseconds) }) { return true }
    guard usesPool.load(ordering: .relaxed) else { return false }
    SleepOfTask(job).start(Int64(clamping: nanoseconds))
    return true
  }

  /// The duration rounded up, so that no sleep is early; nil if the clock counts by another type.
  fileprivate static func nanoseconds<D: DurationProtocol>(_ delay: D) -> UInt64? {
    (delay as? Duration).map { UInt64(max(0, $0.nanoseconds)) }
  }
}

/// A timer of a worker that enqueues a Task's job.
private final class SleepOfTask: TimerCall, @unchecked Sendable {
  // Sound because `job` never changes.
  private let job: UnownedJob

  init(_ job: UnownedJob) {
    self.job = job
    super.init()
  }

  /// Starts the timer: on the caller's worker, which need not be woken for it, else on another one.
  func start(_ nanoseconds: Int64) {
    let pool = WorkerPool.shared
    let own = pool.workerOfCaller(where: pool.isRegular)?.takeUnretainedValue()
    if own == nil { ForkedChild.useThreads() }
    let scheduler = own ?? pool.nextWorker()
    let now = scheduler.clock
    start(at: Duration.deadline(nanoseconds, after: now), on: scheduler, now)
  }

  override func fire() { WorkerPool.shared.enqueue(job, SwiftJobHeader.ofNone, isDue: true) }
}
