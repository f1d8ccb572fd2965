import Testing

@testable import Coroutine

/// Where code that runs on a worker outside any coroutine launches: a Task that prefers the pool, a handler.
@Suite("A launch from a worker's drain", .timeLimit(.minutes(5)))
struct OwnWorkerTests {
  @Test func `by a Task stays on its worker`() async {
    let isOwn = await Task(executorPreference: WorkerPoolExecutor.shared) { launchesOnOwnWorker() }.value
    #expect(isOwn == true)
  }

  @Test func `by a handler stays on its worker`() async throws {
    let source = Promise<Int>()
    let link = try await onCoroutine { source.then { _ in launchesOnOwnWorker() } }
    source.fulfill(1)
    #expect(try await link.value == true)
  }

  @Test func `is one from outside if the drain is that of a queue, or if there is none`() async throws {
    let source = Promise<Int>()
    let link = try await onCoroutine(on: taggedQueue("handler")) { source.then { _ in launchesOnOwnWorker() } }
    source.fulfill(1)
    #expect(try await link.value == nil)
    #expect(await Task { launchesOnOwnWorker() }.value == nil)
    #expect(try await onOwnThread { launchesOnOwnWorker() } == nil)
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

/// Whether a launch from here would stay on the worker whose drain runs the caller; nil if the caller is in no worker's
/// drain.
private func launchesOnOwnWorker() -> Bool? {
  let chosen = Launch.scheduler(for: nil)
  guard let carrier = Carrier.current, carrier.pointee.job == nil,
    carrier.pointee.readyQueue?.pointee.workerPool != nil
  else { return nil }
  return carrier.pointee.scheduler?.toOpaque() == chosen.toOpaque()
}
