import CAsyncWorlds
import Coroutine
import Glibc
@_spi(ExperimentalCustomExecutors) @_spi(ExperimentalScheduling) import _Concurrency

// The default executor of the process while a world with async code runs, and the main executor from the first one on.
//
// Swift 6.3 asks them for each job that becomes ready and for each sleep; its hooks for delays and for the main
// executor are never called on Linux. On a thread that drives such a world the jobs are the world's. Everywhere else
// they are given to the executors that were there before.
//
// This file and CAsyncWorlds depend on how Swift works inside. `refusal` proves each effect, once in a process; where
// one fails, worlds with async code are refused with the reason.

// The default executor is Coroutine's (Tasks/DefaultExecutor.swift), which asks `interceptor` first; the worker pool
// may take what worlds do not, and may have come before or after them.

private final class MainExecutorOfWorlds: MainExecutor, SchedulingExecutor {
  let executor = MainActor.executor

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    if !AsyncExecutors.takes(job, isMain: true) { executor.enqueue(ExecutorJob(job)) }
  }

  func enqueue<C: Clock>(
    _ job: consuming ExecutorJob,
    after delay: C.Duration,
    tolerance: C.Duration?,
    clock: C
  ) {
    let job = UnownedJob(job)
    if AsyncExecutors.takesSleep(job, AsyncExecutors.nanoseconds(delay), isMain: true) { return }
    guard let scheduling = executor as? any SchedulingExecutor else { return executor.enqueue(ExecutorJob(job)) }
    scheduling.enqueue(ExecutorJob(job), after: delay, tolerance: tolerance, clock: clock)
  }

  func enqueue<C: Clock>(
    _ job: consuming ExecutorJob,
    at instant: C.Instant,
    tolerance: C.Duration?,
    clock: C
  ) {
    let job = UnownedJob(job)
    let delay = clock.now.duration(to: instant)
    if AsyncExecutors.takesSleep(job, AsyncExecutors.nanoseconds(delay), isMain: true) { return }
    guard let scheduling = executor as? any SchedulingExecutor else { return executor.enqueue(ExecutorJob(job)) }
    scheduling.enqueue(ExecutorJob(job), at: instant, tolerance: tolerance, clock: clock)
  }

  func run() throws { try executor.run() }
  func stop() { executor.stop() }
  func checkIsolated() {
    if let tasks = AsyncTasks.current, tasks.queues.isOnMain { return }
    executor.checkIsolated()
  }
}

private enum Factory: ExecutorFactory {
  static let mainExecutor: any MainExecutor = MainExecutorOfWorlds()
  // That which is there: DefaultExecutor replaces it while a world runs.
  static var defaultExecutor: any TaskExecutor { Task<Never, Never>.defaultExecutor }
}

enum AsyncExecutors {
  // Sound because an unowned job is the address of the job.
  static func address(of job: UnownedJob) -> UnsafeMutableRawPointer {
    unsafeBitCast(job, to: UnsafeMutableRawPointer.self)
  }

  /// Gives a job to the executor that was there before.
  static func runElsewhere(_ job: UnsafeMutableRawPointer, _ isMain: Bool) {
    let job = unsafeBitCast(job, to: UnownedJob.self)
    if isMain {
      (Factory.mainExecutor as? MainExecutorOfWorlds)?.executor.enqueue(ExecutorJob(job))
    } else {
      DefaultExecutor.enqueueElsewhere(job)
    }
  }

  /// Takes a job if the calling thread drives a world, or if its Task is one of a world.
  fileprivate static func takes(_ job: UnownedJob, isMain: Bool) -> Bool {
    guard let tasks = AsyncTasks.current else { return AsyncTasks.takesFromOutside(address(of: job), isMain) }
    tasks.enqueue(address(of: job), isMain)
    return true
  }

  fileprivate static func takesSleep(_ job: UnownedJob, _ nanoseconds: UInt64, isMain: Bool) -> Bool {
    guard let tasks = AsyncTasks.current else { return false }
    tasks.sleep(address(of: job), nanoseconds, isMain)
    return true
  }

  private static let interceptor = JobInterceptor {
    takes($0, isMain: false)
  } sleep: {
    takesSleep($0, $1, isMain: false)
  }

  fileprivate static func nanoseconds<D: DurationProtocol>(_ delay: D) -> UInt64 {
    guard let delay = delay as? Duration, delay > .zero else { return 0 }
    let (seconds, attoseconds) = delay.components
    let (whole, overflows) = seconds.multipliedReportingOverflow(by: 1_000_000_000)
    // Rounded up: no sleep is early.
    return overflows ? .max : UInt64(whole) &+ UInt64((attoseconds + 999_999_999) / 1_000_000_000)
  }

  private static var callbacks: caw_callbacks {
    caw_callbacks(
      hop: { world, task, identity, implementation in
        AsyncTasks.at(world).hop(task, identity, implementation)
      },
      now: { world in Int64(clamping: AsyncTasks.at(world).readClock()) },
      leave: { world, function in AsyncTasks.at(world).leave(String(cString: function)) },
      takes_work: { world, function in AsyncTasks.at(world).takesWork(of: String(cString: function)) },
      take_work: { world, queue, context, function, isBlock in
        AsyncTasks.at(world).take(AsyncWork(queue: queue, context: context, function: function, isBlock: isBlock))
      },
      run_work: { world, queue in AsyncTasks.at(world).queues.runAll(of: queue) },
      created: { world, task, callers, count in
        AsyncTasks.at(world).created(task, UnsafeBufferPointer(start: callers, count: Int(count)))
      },
      used: { world, object in AsyncTasks.at(world).uses(object) },
      trapped: { world in AsyncTasks.at(world).trapped() }
    )
  }

  private static let replaced: Bool = {
    DefaultExecutor.intercept(by: interceptor)
    DefaultExecutor.withExecutors { _createExecutors(factory: Factory.self) }
    return isMainReplaced
  }()

  private static var isMainReplaced: Bool {
    MainActor.executor is MainExecutorOfWorlds
  }

  /// Installs what worlds with async code need, also into objects that were loaded meanwhile; returns why they are
  /// refused, nil if they are not.
  ///
  /// Any thread; the first call proves the effects by worlds of its own.
  static func install() -> String? { refusal ?? reason(of: findSlots()) ?? (isMainReplaced ? nil : notReplaced) }

  static let notReplaced =
    "Swift's default executor could not be replaced, because another tool has replaced it, or because this version of "
    + "Swift is not known (6.3 is): run the tests without that tool, or with that version"

  private static func findSlots() -> caw_slots {
    var calls = callbacks
    return caw_install(&calls)
  }

  private static func reason(of slots: caw_slots) -> String? {
    if slots.hops == 0 || slots.clocks == 0 {
      return
        "no import of swift_task_switch or clock_gettime was found, as where Swift's libraries are linked statically: "
        + "build the tests without -static-stdlib"
    }
    return nil
  }

  private static let refusal: String? = {
    let slots = findSlots()
    if let reason = reason(of: slots) { return reason }
    guard replaced else { return notReplaced }
    return AsyncProof.failure.map {
      "\($0), which a world needs: this version of Swift is not known (6.3 is), or another tool has replaced the "
        + "executors: run the tests with that version, without that tool"
    }
  }()
}

// MARK: - The proof

/// A program that needs each effect, and what must be seen while a world runs it.
private enum AsyncProof {
  private actor Counter {
    private var value = 0
    func add() { value += 1 }
  }

  @MainActor private static func visitMain() -> Bool {
    MainActor.assumeIsolated { true }
  }

  /// The first effect that failed, as a sentence's beginning; nil if none did.
  static var failure: String? {
    let seen = Seen()
    let world = World()
    do {
      try world.runTasks(RunPolicy(Chooser()), seed: 0, isTraced: false, proves: true) {
        let (before, start) = (ContinuousClock.now, SuspendingClock.now)
        try await Task.sleep(for: .seconds(3600))
        seen.clocks = ContinuousClock.now - before == .seconds(3600) && SuspendingClock.now - start == .seconds(3600)
        try await Task.sleep(for: .seconds(60), clock: .suspending)
        let counter = Counter()
        let hops = AsyncTasks.current?.hops ?? 0
        await counter.add()
        seen.hops = (AsyncTasks.current?.hops ?? 0) > hops
        seen.main = await visitMain()
        await Task.yield()
        let (_, continuation) = AsyncStream<Int>.makeStream()
        caw_learn_stream(true)
        continuation.yield(1)
        caw_learn_stream(false)
        seen.joined = await Task.detached { 1 }.value == 1
      }
    } catch {
      return "a program of a Task, a sleep, an actor and the main actor failed in a world (\(error))"
    }
    if world.now != .seconds(3660) { return "a sleep did not take the world's time" }
    if !seen.clocks { return "Swift's clocks did not show the world's time" }
    if !seen.hops { return "a call of an actor was not seen" }
    if !seen.main || !seen.joined { return "the main actor or a detached Task did not run in the world" }
    return nil
  }

  private final class Seen: @unchecked Sendable {
    // Sound because one thread runs the program.
    var clocks = false
    var hops = false
    var main = false
    var joined = false
  }
}
