import Coroutine
import Testing

@Suite("The unhandled-error hook", .timeLimit(.minutes(10)))
struct UnhandledErrorTests {
  @Test func `receives a failure that is never joined, once, with the job's name`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("unjoined")
    co_launch(name: "unheard of") { () throws -> Void in throw failure }
    let jobs = try await errors.jobs(count: 1)
    #expect(jobs.count == 1)
    #expect(jobs.first?.contains("unheard of") == true)
    #expect(try await errors.settledLabels() == ["unjoined"])
  }

  @Test func `receives it also if the handle is released later`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("dropped")
    try await onSerialQueue {
      let job = co_launch { () throws -> Void in throw failure }
      while !job.isFinished { try co_yield() }
    }
    _ = try await errors.jobs(count: 1)
    #expect(try await errors.settledLabels() == ["dropped"])
  }

  @Test func `does not receive failures that were joined, awaited or waited for`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("seen")
    let jobs = (0..<4).map { _ in co_launch(start: .lazy) { () throws -> Int in throw failure } }
    let seen = [
      try await onCoroutine { outcome { try jobs[0].join() } },
      try await onCoroutine { outcome { try co_await(jobs[1]) } },
      await asyncOutcome { try await jobs[2].value },
      try await onOwnThread { outcome { try jobs[3].blockingWait() } },
    ]
    #expect(seen == Array(repeating: "Failure(seen)", count: 4))
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `receives it if the only joiner was cancelled before the end`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("given up")
    try await onSerialQueue {
      let gate = Gate()
      let joiner = Self.joinerOfFailing(failure, after: gate)
      try co_yield()
      joiner.cancel()
      _ = outcome { try joiner.join() }
      gate.open()
    }
    _ = try await errors.jobs(count: 1)
    #expect(try await errors.settledLabels() == ["given up"])
  }

  private static func joinerOfFailing(_ failure: UnhandledErrors.Failure, after gate: Gate) -> Job<Void> {
    let job = co_launch { () throws -> Void in
      try gate.pass()
      throw failure
    }
    return co_launch { try job.join() }
  }

  @Test func `does not receive cancellations`() async throws {
    // In a separate process: it must receive every error, and cancellations have no identity.
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      let last = Gate()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        heard(name(of: unhandled.error))
        if unhandled.error is Oops { last.open() }
      }
      try await onSerialQueue {
        co_launch { try waitForCancellation() }.cancel()
        let parked = co_launch { try waitForCancellation() }
        try co_yield()
        parked.cancel()
        try co_yield()
      }
      co_launch { () throws -> Void in throw Oops("last") }
      try await onCoroutine { try last.pass() }
      #expect(heard.all == ["Oops(last)"])
    }
  }

  @Test func `by default writes one line with the failure, the name and the launch site to standard error`()
    async throws
  {
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      let byDefault = CoroutineRuntime.unhandledErrorHandler
      let written = Gate()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        byDefault(unhandled)
        written.open()
      }
      co_launch(name: "doomed job") { () throws -> Void in throw Oops("its reason") }
      try await onCoroutine { try written.pass() }
    }
    let output = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    let lines = output.split(separator: "\n").filter { $0.contains("doomed job") }
    #expect(lines.count == 1, "\(output)")
    #expect(lines.first?.contains("its reason") == true, "\(output)")
    #expect(lines.first?.contains("UnhandledErrorTests.swift") == true, "\(output)")
  }

  @Test func `a resumer used twice is reported on standard error, and the process goes on`() async throws {
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      let value = try await onCoroutine { () -> Int in
        try co_suspend { done in
          done.resume(1)
          done.resume(2)
        }
      }
      #expect(value == 1)
    }
    #expect(result?.standardErrorContent.isEmpty == false)
  }
}
