import Testing

@testable import Coroutine

/// Where code of a Task launches that prefers the pool.
@Suite("A launch by a Task on a worker", .timeLimit(.minutes(10)))
struct OwnWorkerTests {
  @Test func `stays on that worker`() async {
    let isOwn = await Task(executorPreference: ownWorkers("own")) { launchesOnOwnWorker() }.value
    #expect(isOwn)
  }

  @Test func `stays there also in async code that a coroutine calls`() async throws {
    let queue = ownWorkers("called").workers[0].currentQueue
    #expect(try await onCoroutine(on: queue) { try co_await { launchesOnOwnWorker() } })
  }

  @Test func `a synchronous function of the Task that waits for it is told that this would be a deadlock`() async {
    let pool = ownWorkers("waits", count: 1)
    let message = await Task(executorPreference: pool) {
      outcome { try synchronously { try co_launch {}.blockingWait() } }
    }.value
    #expect(message.contains("wouldDeadlock"), "\(message)")
  }

  // Only the watchdog can have the coroutines taken, and nothing but these Tasks has started it.
  @Test(.tags(.realClock), arguments: [1, 2])
  func `does not wait until its Task is done, also if Tasks fill the pool from the beginning`(workers: Int) async {
    let pool = ownWorkers("filled", count: workers)
    let tasks = (0..<workers).map { _ in
      Task(executorPreference: pool) {
        let isRunning = Flag()
        co_launch { isRunning.raise() }
        let start = ContinuousClock.now
        while !isRunning.isRaised { if start.duration(to: .now) > .seconds(120) { return false } }
        return true
      }
    }
    for task in tasks { #expect(await task.value) }
  }

  @Test func `does not wait until its Task is done`() async {
    let number = await Task(executorPreference: WorkerPoolExecutor.shared) {
      let isRunning = Flag()
      let job = co_launch {
        isRunning.raise()
        return 7
      }
      // Another worker has to take it: this one computes.
      while !isRunning.isRaised {}
      return try? await job.value
    }.value
    #expect(number == 7)
  }

  @Test func `by many Tasks at once: all jobs run, each once`() async throws {
    let sum = try await withThrowingTaskGroup(of: Int.self) { group in
      for task in 0..<64 {
        group.addTask(executorPreference: WorkerPoolExecutor.shared) {
          let jobs = (0..<100).map { index in co_launch { task * 100 + index } }
          var sum = 0
          for job in jobs { sum += try await job.value }
          return sum
        }
      }
      return try await group.reduce(0, +)
    }
    #expect(sum == (0..<6_400).reduce(0, +))
  }
}

/// Whether a launch from here stays on the worker whose drain runs the caller.
private func launchesOnOwnWorker() -> Bool {
  let chosen = Launch.scheduler(for: nil)
  guard let carrier = Carrier.current, carrier.pointee.job == nil else { return false }
  return carrier.pointee.scheduler?.toOpaque() == chosen.toOpaque()
}
