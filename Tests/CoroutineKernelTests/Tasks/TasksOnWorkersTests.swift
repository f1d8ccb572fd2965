import CCoroutine
import CTestSupport
import Dispatch
import Foundation
import Glibc
import Synchronization
import Testing
@_spi(ExperimentalCustomExecutors) import _Concurrency

@testable import Coroutine

/// Tasks on the worker pool (`CoroutineRuntime.runTasksOnWorkers`).
///
/// The installation is for a process, so each test is a process; one that hangs is ended by its alarm.
@Suite("Tasks on workers", .timeLimit(.minutes(10)))
struct TasksOnWorkersTests {
  enum Executors: String, CaseIterable, Codable {
    case swift
    case workers
    case oneWorker
  }

  @Test("every behaviour of Tasks is the same", arguments: Executors.allCases)
  func behaviours(executors: Executors) async throws {
    let ended = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) { [executors] in
      alarm(540)
      if executors == .oneWorker { setenv("COROUTINE_WORKERS", "1", 1) }
      if executors != .swift { check(CoroutineRuntime.runTasksOnWorkers()) }
      let differences = await Task.detached { await TaskBehaviour.runAll() }.value
      let onWorker = await Task.detached { isOnWorker }.value
      check(onWorker == (executors != .swift))
      say(differences)
      // Sleeps that were cancelled still wait for their time, which what looks for leaks at the end takes for one.
      _exit(0)
    }
    let lines = String(decoding: ended?.standardErrorContent ?? [], as: UTF8.self)
    #expect(!lines.contains("and not"), "\(lines)")
  }

  // ThreadSanitizer ends a child of many threads.
  @Test(.enabled(if: cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue == 0))
  func `a child that was forked before the first use may install it`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      while !cts_may_fork() { sched_yield() }
      let code = cts_in_child(
        120,
        { _ in
          let ran = DispatchSemaphore(value: 0)
          guard CoroutineRuntime.runTasksOnWorkers() else { return 8 }
          Task.detached { ran.signal() }
          ran.wait()
          return 7
        },
        nil
      )
      check(code == 7)
    }
  }

  @Test(arguments: [true, false])
  func `a Task or a sleep in a child that was forked after it ends that with a sentence`(sleeps: Bool) async {
    let ended = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) { [sleeps] in
      alarm(300)
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      check(CoroutineRuntime.runTasksOnWorkers())
      check(await Task.detached { isOnWorker }.value)
      // From another thread: on a worker that is busy, no moment to fork comes.
      let code = await withCheckedContinuation { (done: CheckedContinuation<Int32, Never>) in
        startThread {
          while !cts_may_fork() { sched_yield() }
          let code =
            sleeps
            ? cts_in_child(120, { _ in sleepInTask() }, nil)
            : cts_in_child(120, { _ in beginTask() }, nil)
          done.resume(returning: code)
        }
      }
      check(code < 0 && code != -SIGALRM)
    }
    let text = String(decoding: ended?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains("this process is a forked child"), "\(text)")
  }

  @Test("it can be installed", arguments: Moment.allCases)
  func installation(moment: Moment) async {
    await #expect(processExitsWith: .success) { [moment] in
      alarm(300)
      switch moment {
      case .first: check(CoroutineRuntime.runTasksOnWorkers())
      case .afterTasks:
        await withTaskGroup(of: Void.self) { group in
          for _ in 0..<100 { group.addTask { try? await Task.sleep(for: .milliseconds(1)) } }
        }
        check(CoroutineRuntime.runTasksOnWorkers())
      case .onAThread:
        synchronously {
          let done = DispatchSemaphore(value: 0)
          DispatchQueue.global().async {
            check(CoroutineRuntime.runTasksOnWorkers())
            done.signal()
          }
          done.wait()
        }
      case .inACoroutine:
        let isDone = try? await co_launch { CoroutineRuntime.runTasksOnWorkers() }.value
        check(isDone == true)
      case .byTheEnvironment:
        setenv("COROUTINE_TASKS", "1", 1)
        _ = try? await co_launch {}.value
      case .twice:
        check(CoroutineRuntime.runTasksOnWorkers())
        check(CoroutineRuntime.runTasksOnWorkers())
      }
      check(CoroutineRuntime.tasksRefusal == nil)
      let (first, second) = await Task.detached {
        let first = isOnWorker
        try? await Task.sleep(for: .milliseconds(1))
        return (first, isOnWorker)
      }.value
      check(first && second)
    }
  }

  enum Moment: String, CaseIterable, Codable {
    case first, afterTasks, onAThread, inACoroutine, byTheEnvironment, twice
  }

  @Test func `the option of co_main does the same`() async {
    await #expect(processExitsWith: .exitCode(0)) {
      alarm(300)
      program()
    }
  }

  @Test func `while threads enqueue and sleep, no job is lost`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let isInstalled = Flag()
      async let counts = withTaskGroup(of: Int.self) { group in
        for _ in 0..<8 {
          group.addTask {
            var count = 0
            while !isInstalled.isRaised || count < 2_000 {
              await Task.detached {}.value
              try? await Task.sleep(nanoseconds: 1)
              count += 1
            }
            return 1
          }
        }
        return await group.reduce(0, +)
      }
      try? await Task.sleep(for: .milliseconds(5))
      check(CoroutineRuntime.runTasksOnWorkers())
      isInstalled.raise()
      check(await counts == 8)
    }
  }

  @Test func `a hook of another library refuses it, and the reason says so`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let hook = dlsym(dlopen(nil, RTLD_NOW), "swift_task_enqueueGlobal_hook")
      guard let hook else { return check(false) }
      // Never called: no Task is made while it is set.
      hook.storeBytes(of: UInt(16), as: UInt.self)
      let isDone = CoroutineRuntime.runTasksOnWorkers()
      hook.storeBytes(of: 0, as: UInt.self)
      check(!isDone && !CoroutineRuntime.runTasksOnWorkers())
      check(CoroutineRuntime.tasksRefusal?.contains("SwiftNIO") == true)
      check(!(await Task.detached { isOnWorker }.value))
    }
  }

  @Test func `an executor of the program's refuses it, and the reason names that`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      _createExecutors(factory: OwnFactory.self)
      await Task.detached {}.value
      check(!CoroutineRuntime.runTasksOnWorkers())
      check(CoroutineRuntime.tasksRefusal?.contains("default executor of its own") == true)
      check(CoroutineRuntime.tasksRefusal?.contains("OwnExecutor") == true)
      check(!(await Task.detached { isOnWorker }.value))
    }
  }

  @Test(arguments: ["yes", "2", "true"])
  func `another value of the environment variable ends the process with a sentence`(value: String) async {
    let ended = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [value] in
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      setenv("COROUTINE_TASKS", value, 1)
      _ = try? await co_launch {}.value
    }
    let text = String(decoding: ended?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains("COROUTINE_TASKS is '\(value)'"), "\(text)")
  }

  @Test func `it stays in effect where another library sets the hook later, and takes it away`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      check(CoroutineRuntime.runTasksOnWorkers())
      let hook = dlsym(dlopen(nil, RTLD_NOW), "swift_task_enqueueGlobal_hook")
      guard let hook else { return check(false) }
      hook.storeBytes(of: 0, as: UInt.self)
      for _ in 0..<100 {
        let (first, second) = await Task.detached {
          let first = isOnWorker
          try? await Task.sleep(for: .microseconds(10))
          return (first, isOnWorker)
        }.value
        check(first && second)
      }
    }
  }

  @Test func `a Task that awaits a coroutine stays on its worker`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      check(CoroutineRuntime.runTasksOnWorkers())
      let isSame = await Task.detached {
        // Another worker may steal one of them, and seldom does: in one of many batches at least half of them stay.
        for _ in 0..<100 {
          var staying = 0
          for _ in 0..<100 {
            let here = cts_thread_id()
            let there = try? await co_launch { cts_thread_id() }.value
            if there == here, cts_thread_id() == here { staying += 1 }
          }
          if staying >= 50 { return true }
        }
        return false
      }.value
      check(isSame)
    }
  }

  @Test func `a single job behind a Task that computes is taken over`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      setenv("COROUTINE_WORKERS", "2", 1)
      check(CoroutineRuntime.runTasksOnWorkers())
      await Task.detached {
        let hasRun = Flag()
        let task = Task.detached { hasRun.raise() }
        while !hasRun.isRaised {}
        await task.value
      }.value
    }
  }

  @Test func `a worker that is busy takes it over if none is idle`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      setenv("COROUTINE_WORKERS", "2", 1)
      // No spare worker helps.
      CoroutineRuntime.onStall(after: .seconds(3_600), nil)
      check(CoroutineRuntime.runTasksOnWorkers())
      let (rounds, hasRun) = (Tally(), Flag())
      let busy = co_launch {
        while !hasRun.isRaised {
          rounds.add()
          try co_yield()
        }
      }
      await Task.detached {
        let before = rounds.value
        while rounds.value < before + 100 {}
        // The other worker runs the coroutine from now on, and is never idle.
        let task = Task.detached { hasRun.raise() }
        while !hasRun.isRaised {}
        await task.value
      }.value
      try? await busy.value
    }
  }

  @Test func `a snapshot has the Tasks that run and that wait, with their numbers`() async throws {
    await #expect(processExitsWith: .success) {
      alarm(300)
      setenv("COROUTINE_WORKERS", "1", 1)
      CoroutineRuntime.onStall(after: .seconds(3_600), nil)
      check(CoroutineRuntime.runTasksOnWorkers())
      let (hasBegun, mayEnd) = (Flag(), Flag())
      let first = Task.detached {
        hasBegun.raise()
        while !mayEnd.isRaised {}
      }
      while !hasBegun.isRaised { sched_yield() }
      let others = (0..<20).map { _ in Task.detached {} }
      let snapshot = CoroutineRuntime.snapshot()
      let tasks = snapshot.tasks
      check(tasks.count == 17 && tasks.allSatisfy { $0.scheduler == "coroutine.shared.0" })
      check(tasks.map(\.isRunning) == [true] + Array(repeating: false, count: 16))
      let numbers = tasks.compactMap(\.id)
      check(numbers.count == 17 && numbers == numbers.sorted() && Set(numbers).count == 17)
      check(CoroutineRuntime.metrics.taskPartsReady == 20)
      let text = CoroutineRuntime.dump()
      let listed = numbers.dropFirst().map(String.init).joined(separator: ", ")
      check(text.contains("jobs of Swift Tasks that wait for coroutine.shared.0: 20 (Tasks \(listed), …)\n"))
      check(Dump.running().contains("Swift Task \(numbers[0])'s job on coroutine.shared.0"))
      var json: [UInt8] = []
      CoroutineRuntime.snapshotJSON { json += $0 }
      let read = try? JSONDecoder().decode(CoroutineRuntime.Snapshot.self, from: Data(json))
      check(read?.tasks.map(\.id) == tasks.map(\.id) && read?.tasks.first?.isRunning == true)
      let written = try? JSONEncoder().encode(snapshot)
      let again = written.flatMap { try? JSONDecoder().decode(CoroutineRuntime.Snapshot.self, from: $0) }
      check(again?.tasks.map(\.id) == tasks.map(\.id))
      mayEnd.raise()
      await first.value
      for task in others { await task.value }
      check(CoroutineRuntime.snapshot().tasks.allSatisfy(\.isRunning))
    }
  }

  @Test func `jobs behind Tasks that block all workers are taken over`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      setenv("COROUTINE_WORKERS", "2", 1)
      check(CoroutineRuntime.runTasksOnWorkers())
      let begun = Tally()
      let mayEnd = DispatchSemaphore(value: 0)
      let blocked = (0..<2).map { _ in
        Task.detached {
          begun.add()
          synchronously { mayEnd.wait() }
        }
      }
      synchronously { while begun.value < 2 { sched_yield() } }
      let wakers = (0..<2).map { _ in Task.detached { _ = mayEnd.signal() } }
      for task in blocked + wakers { await task.value }
    }
  }

  @Test(arguments: [true, false])
  func `a Task that a spare worker has made, and a sleep that began there, are on an idle worker`(sleeps: Bool) async {
    await #expect(processExitsWith: .success) { [sleeps] in
      alarm(300)
      setenv("COROUTINE_WORKERS", "1", 1)
      CoroutineRuntime.onStall(after: .milliseconds(200), nil)
      check(CoroutineRuntime.runTasksOnWorkers())
      let isRight = await onSpare {
        // Not on worker 0 for sure: where the spare worker's thread began late, another one was asked to take over as
        // well, and may come only now.
        let spare = workerIndex
        guard sleeps else { return await Task.detached { workerIndex }.value != spare }
        let sleeper = Task.immediate { try? await Task.sleep(for: .seconds(600)) }
        synchronously { while WorkerPool.shared.workers[0].nextTimer.load(ordering: .relaxed) == .max {} }
        sleeper.cancel()
        return true
      }
      check(isRight)
    }
  }

  @Test func `a child that is forked inside of a Task, and returns, ends with a sentence and runs no other`() async {
    let ended = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      alarm(300)
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      setenv("COROUTINE_WORKERS", "1", 1)
      // No spare worker runs the other Task meanwhile.
      CoroutineRuntime.onStall(after: .seconds(3_600), nil)
      check(CoroutineRuntime.runTasksOnWorkers())
      let answer = Locked<Int32>(0)
      let (hasEnded, hasRun) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
      // Nothing awaits it: to resume that would end the child as well.
      Task.detached {
        // Then the watchdog has made the types that it uses, which it does under locks of Swift's runtime.
        while !WorkerPool.shared.isSlow.load(ordering: .relaxed) {}
        Task.detached {
          say(["another Task"])
          hasRun.signal()
        }
        // A thread that runs may hold a lock of Swift's runtime; the watchdog sleeps most of the time.
        while !cts_other_threads_sleep() {}
        let child = cts_fork(120)
        if child != 0 {
          let end = cts_end_of(child)
          answer.withLock { $0 = end }
          hasEnded.signal()
        }
      }
      synchronously {
        hasEnded.wait()
        hasRun.wait()
      }
      // By a trap, and not by the alarm.
      check(answer.current < 0 && answer.current != -SIGALRM && answer.current != -1_000)
    }
    let text = String(decoding: ended?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains("a forked child has returned from a part of its parent's Task"), "\(text)")
    #expect(text.components(separatedBy: "another Task").count == 2, "\(text)")
  }

  @Test func `a child that is forked inside of a handler, and returns, ends with a sentence and runs no other`() async {
    let ended = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      alarm(300)
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      setenv("COROUTINE_WORKERS", "1", 1)
      // No spare worker runs the other handler meanwhile.
      CoroutineRuntime.onStall(after: .seconds(3_600), nil)
      let answer = Locked<Int32>(0)
      let hasRun = DispatchSemaphore(value: 0)
      let source = Promise<Void>()
      let promises = try synchronously {
        let promises = try co_launch {
          // Then the watchdog has made the types that it uses, which it does under locks of Swift's runtime.
          while !WorkerPool.shared.isSlow.load(ordering: .relaxed) { try co_yield() }
          // Handlers of one worker, which run one after the other.
          let forking = source.then { _ in
            while !cts_other_threads_sleep() {}
            let child = cts_fork(120)
            if child != 0 { answer.withLock { $0 = cts_end_of(child) } }
          }
          let other = source.then { _ in
            say(["another handler"])
            hasRun.signal()
          }
          source.fulfill(())
          return (forking, other)
        }
        .blockingWait()
        hasRun.wait()
        return promises
      }
      // By a trap, and not by the alarm.
      check(answer.current < 0 && answer.current != -SIGALRM && answer.current != -1_000)
      withExtendedLifetime(promises) {}
    }
    let text = String(decoding: ended?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains("or from a handler"), "\(text)")
    #expect(text.components(separatedBy: "another handler").count == 2, "\(text)")
  }

  @Test func `jobs that a worker has taken from another one are offered to an idle one`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let pool = ownWorkers("offers", count: 2)
      // No watchdog: it would have them taken over.
      pool.watching.store(true, ordering: .relaxed)
      let (caught, hasRun) = (CatchingExecutor(), Flag())
      // The one that runs last ends the wait of the first.
      let tasks = (0..<2).map { number in
        Task.detached(executorPreference: caught) {
          if number == 0 { synchronously { while !hasRun.isRaised {} } } else { hasRun.raise() }
        }
      }
      let thief = pool.workers[0]
      let keeps: @Sendable () -> Void = {
        while pool.idle.load(ordering: .acquiring) != 2 {}
        var (none, jobs) = (JobQueue(), WorkQueue())
        for job in caught.jobs.current {
          let job = SwiftJobRef(job)
          job.pointee.executor = SwiftJobHeader.ofNone | UInt(SwiftJobs.level(of: job)) << 2
          jobs.append(.swiftJob(job))
        }
        thief.keep(&none, &jobs)
      }
      thief.push(.work(ClosureWork.retained(keeps, nil)))
      for task in tasks { await task.value }
    }
  }
}

private func sleepInTask() -> Int32 {
  Task.immediate { try? await Task.sleep(for: .milliseconds(1)) }
  return 7
}

private func beginTask() -> Int32 {
  Task.detached {}
  return 7
}

/// A default executor of a program, which runs each job on a thread of Dispatch.
private final class OwnExecutor: TaskExecutor {
  static let own = OwnExecutor()

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    DispatchQueue.global().async { job.runSynchronously(on: OwnExecutor.own.asUnownedTaskExecutor()) }
  }
}

private enum OwnFactory: ExecutorFactory {
  static let mainExecutor: any MainExecutor = MainActor.executor
  static let defaultExecutor: any TaskExecutor = OwnExecutor.own
}

/// Keeps the jobs of Tasks that prefer it.
private final class CatchingExecutor: TaskExecutor {
  let jobs = Locked<[UnownedJob]>([])

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    jobs.withLock { $0.append(job) }
  }
}

/// The number of the worker in whose drain the caller runs; that of a spare one is not below the number of workers.
private var workerIndex: Int {
  WorkerPool.shared.workerOfCaller { _ in true }?._withUnsafeGuaranteedRef { $0.workerIndex } ?? -1
}

/// Runs `body` in a Task that begins on a spare worker, where there is one worker, which is idle by then.
private func onSpare<Output: Sendable>(_ body: @escaping @Sendable () async -> Output) async -> Output {
  let (hasBegun, isOnSpare) = (Flag(), Flag())
  let blocked = Task.detached {
    hasBegun.raise()
    synchronously { while !isOnSpare.isRaised {} }
  }
  synchronously { while !hasBegun.isRaised { sched_yield() } }
  let output = await Task.detached {
    check(workerIndex > 0)
    isOnSpare.raise()
    synchronously { while !WorkerPool.shared.hasIdle {} }
    return await body()
  }.value
  await blocked.value
  return output
}

/// Whether the caller runs in the drain of a worker of the shared pool.
private var isOnWorker: Bool { WorkerPool.ofCaller === WorkerPool.shared }

private func program() {
  co_main(tasksOnWorkers: true) { try serve() }
}

@Sendable private func serve() throws {
  check(try co_await { await Task.detached { isOnWorker }.value })
}

/// Ends the process with 1 if that is false.
private func check(_ isTrue: Bool, line: Int = #line) {
  if !isTrue {
    say(["line \(line) of TasksOnWorkersTests"])
    _exit(1)
  }
}

private func say(_ lines: [String]) {
  for line in lines { writeToStandardError(line + "\n") }
}
