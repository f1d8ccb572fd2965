import Coroutine
import Testing

@Suite("Job.value", .timeLimit(.minutes(10)))
struct AsyncValueTests {
  @Test func `async code gets the value, before and after the end`() async throws {
    let gate = Gate()
    let job = co_launch {
      try gate.pass()
      return "value"
    }
    // Runs here up to its wait.
    let before = Task.immediate { try await job.value }
    gate.open()
    #expect(try await before.value == "value")
    #expect(try await job.value == "value")
  }

  @Test func `async code gets the failure`() async {
    let job = co_launch { () throws -> Int in throw Oops("async") }
    #expect(await asyncOutcome { try await job.value } == "Oops(async)")
  }

  @Test func `many tasks await one job`() async throws {
    let gate = Gate()
    let job = co_launch {
      try gate.pass()
      return 1
    }
    let sum = try await withThrowingTaskGroup(of: Int.self) { group in
      for _ in 0..<50 { group.addTask { try await job.value } }
      gate.open()
      return try await group.reduce(0, +)
    }
    #expect(sum == 50)
  }

  @Test func `cancelling the awaiting task cancels the job`() async {
    let started = Gate()
    let job = co_launch {
      started.open()
      try waitForCancellation()
    }
    let task = Task { try await job.value }
    _ = try? await onCoroutine { try started.pass() }
    task.cancel()
    #expect(await asyncOutcome { try await task.value } == "CancellationError")
    #expect(job.isCancelled)
  }

  @Test func `a task that is cancelled already cancels the job as it asks for the value`() async {
    let job = co_launch { try waitForCancellation() }
    let task = Task {
      withUnsafeCurrentTask { $0?.cancel() }
      try await job.value
    }
    #expect(await asyncOutcome { try await task.value } == "CancellationError")
    #expect(job.isCancelled)
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
  }

  @Test func `a body that returns a value though its task was cancelled has succeeded`() async throws {
    let started = Gate()
    let job = co_launch {
      started.open()
      return outcome { try waitForCancellation() }
    }
    let task = Task { try await job.value }
    try await onCoroutine { try started.pass() }
    task.cancel()
    #expect(try await task.value == "CancellationError")
  }

  @Test func `a task group that fails takes its jobs along`() async {
    let job = co_launch { try waitForCancellation() }
    let seen = await asyncOutcome {
      try await withThrowingTaskGroup(of: Void.self) { group in
        group.addTask { try await job.value }
        group.addTask { throw Oops("sibling") }
        // Not waitForAll: that cancels nothing.
        for try await _ in group {}
      }
    }
    #expect(seen == "Oops(sibling)")
    #expect(job.isCancelled)
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
  }
}
