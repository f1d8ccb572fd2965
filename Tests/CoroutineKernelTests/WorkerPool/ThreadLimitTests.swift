import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

private let isRefusing = Atomic<Bool>(false)

/// Refuses threads to workers and to the watchdog, as the kernel does at a limit, from now on.
private func refuseThreads() {
  if WorkerHost.refuseThreads == nil {
    WorkerHost.refuseThreads = { isRefusing.load(ordering: .relaxed) ? EAGAIN : 0 }
  }
  isRefusing.store(true, ordering: .relaxed)
}

private func grantThreads() { isRefusing.store(false, ordering: .relaxed) }

/// In processes of their own, because the workers are those of the process.
@Suite("A process that gets no thread", .timeLimit(.minutes(10)))
struct ThreadLimitTests {
  @Test func `fails each launch with the limit, and launches when it gets one`() async {
    await #expect(processExitsWith: .success) {
      refuseThreads()
      for start in [StartMode.queued, .lazy] {
        let failed = outcome { try co_launch(start: start) { 1 }.blockingWait() }
        #expect(failed == "outOfStacks")
      }
      do {
        try synchronously { try co_launch {}.blockingWait() }
      } catch {
        #expect("\(error)".contains("pids.max"), "\(error)")
      }
      grantThreads()
      let value = try synchronously { try co_launch { 3 }.blockingWait() }
      #expect(value == 3)
    }
  }

  // The kernel lets the administrator start threads whatever the limit is.
  @Test(.enabled(if: geteuid() == 0)) func `makes no context before the runtime has found the words of others`() async {
    await #expect(processExitsWith: .success) {
      var limit = rlimit()
      let threads = __rlimit_resource_t(__RLIMIT_NPROC.rawValue)
      getrlimit(threads, &limit)
      let before = limit.rlim_cur
      limit.rlim_cur = 0
      setrlimit(threads, &limit)
      setuid(65_534)
      // A generator needs no worker.
      let numbers = co_sequence(of: Int.self) { yield in
        try yield(1)
        try yield(2)
      }
      #expect(outcome { try numbers.step() } == "outOfStacks")
      limit.rlim_cur = before
      setrlimit(threads, &limit)
      let value = try Told.$value.withValue(1) { () throws -> Int in
        let own = co_sequence(of: Int.self) { yield in
          try Told.$value.withValue(2) { () throws -> Void in try yield(Told.value) }
        }
        _ = try own.step()
        return Told.value
      }
      #expect(value == 1)
    }
  }

  private enum Told { @TaskLocal static var value = 0 }

  @Test func `releases the captures of a body that fails so`() async {
    await #expect(processExitsWith: .success) {
      refuseThreads()
      final class Capture: Sendable {}
      weak var captured: Capture?
      func fails() -> String {
        let capture = Capture()
        captured = capture
        return outcome { try co_launch { _ = capture }.blockingWait() }
      }
      #expect(fails() == "outOfStacks")
      #expect(captured == nil)
    }
  }

  @Test func `runs the Tasks that came meanwhile when a later one finds a thread`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      setenv("COROUTINE_WORKERS", "2", 1)
      #expect(CoroutineRuntime.runTasksOnWorkers())
      refuseThreads()
      let early = (0..<4).map { number in Task.detached { number } }
      grantThreads()
      let late = Task.detached { 4 }
      var sum = await late.value
      for task in early { sum += await task.value }
      #expect(sum == 10)
    }
  }

  @Test func `fails a launch behind a Task for which there was no thread`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      setenv("COROUTINE_WORKERS", "1", 1)
      #expect(CoroutineRuntime.runTasksOnWorkers())
      refuseThreads()
      let early = Task.detached { 1 }
      let failed = outcome { try co_launch { 1 }.blockingWait() }
      #expect(failed == "outOfStacks")
      grantThreads()
      let value = try synchronously { try co_launch { 3 }.blockingWait() }
      #expect(value == 3)
      #expect(await early.value == 1)
    }
  }

  @Test func `runs a Task for which there was no thread at first, although nothing comes later`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      setenv("COROUTINE_WORKERS", "1", 1)
      #expect(CoroutineRuntime.runTasksOnWorkers())
      let asked = Atomic<Int>(0)
      // The watchdog gets the second one, and tries again for the worker.
      WorkerHost.refuseThreads = { asked.add(1, ordering: .relaxed).newValue == 1 ? EAGAIN : 0 }
      synchronously {
        let hasRun = DispatchSemaphore(value: 0)
        Task.detached { hasRun.signal() }
        hasRun.wait()
      }
    }
  }

  @Test func `knows that a worker runs, although it was noted to have no thread`() async {
    let pool = ownWorkers("noted", count: 1)
    // In place of its watchdog, which does not start.
    pool.watching.store(true, ordering: .sequentiallyConsistent)
    let (hasBegun, mayEnd) = (Flag(), Flag())
    let task = Task.detached(executorPreference: pool) {
      hasBegun.raise()
      while !mayEnd.isRaised {}
    }
    synchronously { while !hasBegun.isRaised { sched_yield() } }
    pool.withoutThread.store(1, ordering: .sequentiallyConsistent)
    pool.retryThreads(Clock.now)
    #expect(pool.withoutThread.load(ordering: .relaxed) == 0 && !pool.hasIdle)
    mayEnd.raise()
    await task.value
  }

  /// Neither the second worker nor the watchdog gets one.
  @Test func `runs each Task by the one worker that has a thread`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      setenv("COROUTINE_WORKERS", "2", 1)
      #expect(CoroutineRuntime.runTasksOnWorkers())
      let granted = Atomic<Int>(0)
      WorkerHost.refuseThreads = { granted.add(1, ordering: .relaxed).newValue == 1 ? 0 : EAGAIN }
      // The test has not waited yet, so it is on a thread of Swift's, and outside.
      synchronously {
        let hasRun = DispatchSemaphore(value: 0)
        for count in 1...20 {
          for _ in 0..<count { Task.detached { hasRun.signal() } }
          for _ in 0..<count { hasRun.wait() }
        }
      }
    }
  }

  /// Where the coroutines of a test are launched.
  enum Place: CaseIterable, Codable { case outside, inside, immediate }

  @Test(arguments: Place.allCases)
  func `goes on with the workers that it has, and with more when it gets them`(_ place: Place) async {
    await #expect(processExitsWith: .success) { [place] in
      setenv("COROUTINE_WORKERS", "4", 1)
      try synchronously { try co_launch {}.blockingWait() }
      refuseThreads()
      @Sendable func work(_ number: Int) throws -> Int {
        for _ in 0..<10 { try co_delay(.microseconds(50)) }
        return number
      }
      func run() throws -> Int {
        switch place {
        case .outside, .immediate:
          let start: StartMode = place == .immediate ? .immediate : .queued
          return try (0..<200).map { number in co_launch(start: start) { try work(number) } }
            .reduce(0) { try $0 + $1.blockingWait() }
        case .inside:
          return try co_launch {
            try (0..<200).map { number in co_launch { try work(number) } }.reduce(0) { try $0 + $1.join() }
          }.blockingWait()
        }
      }
      for _ in 0..<20 {
        let sum = try run()
        #expect(sum == 19_900)
      }
      let workers = WorkerPool.shared.workers
      func threads() -> Int { workers.count { ($0.host as? WorkerHost)?.hasThread ?? false } }
      // One, or more where the watchdog has asked for help before the refusal.
      let had = threads()
      #expect(had >= 1)
      grantThreads()
      while threads() < min(had + 1, workers.count) {
        let sum = try run()
        #expect(sum == 19_900)
      }
    }
  }
}
