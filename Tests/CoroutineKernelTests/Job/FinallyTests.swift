import Coroutine
import Testing

@Suite("Job.finally", .timeLimit(.minutes(10)))
struct FinallyTests {
  /// Ends a job in one way; `finally` must run after each.
  enum Ending: CaseIterable {
    case returns
    case fails
    case cancelled
    case cancelledBeforeStart

    func job() throws -> Job<Int> {
      switch self {
      case .returns:
        return co_launch { 1 }
      case .fails:
        return co_launch { throw Oops("body") }
      case .cancelled:
        let job = co_launch { () throws -> Int in
          try waitForCancellation()
          return 2
        }
        try co_yield()
        job.cancel()
        return job
      case .cancelledBeforeStart:
        let job = co_launch { 3 }
        job.cancel()
        return job
      }
    }

    var outcome: String {
      switch self {
      case .returns: "1"
      case .fails: "Oops(body)"
      case .cancelled, .cancelledBeforeStart: "CancellationError"
      }
    }
  }

  @Test(arguments: Ending.allCases)
  func `runs once after the end, whatever the outcome, and does not change it`(ending: Ending) async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let job = try ending.job()
      let ran = Gate()
      job.finally {
        trace("finished: \(job.isFinished)")
        ran.open()
      }
      let seen = outcome { try job.join() }
      try ran.pass()
      for _ in 0..<3 { try co_yield() }
      return [seen, outcome { try job.join() }]
    }
    #expect(trace.all == ["finished: true"])
    #expect(seen == [ending.outcome, ending.outcome])
  }

  @Test(arguments: Ending.allCases)
  func `runs once if attached late, and not within the attaching call`(ending: Ending) async throws {
    let trace = Trace()
    try await onSerialQueue {
      let job = try ending.job()
      _ = outcome { try job.join() }
      let ran = Gate()
      job.finally {
        trace("finally")
        ran.open()
      }
      trace("attached")
      try ran.pass()
      for _ in 0..<3 { try co_yield() }
    }
    #expect(trace.all == ["attached", "finally"])
  }

  @Test func `several may be attached, and run in the order of attaching`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let ran = Gate()
      co_launch { trace("body") }
        .finally { trace("1") }
        .finally { trace("2") }
        .finally {
          trace("3")
          ran.open()
        }
      try ran.pass()
    }
    #expect(trace.all == ["body", "1", "2", "3"])
  }

  @Test func `returns the job itself`() async throws {
    let job = co_launch { 1 }
    #expect(job.finally {} === job)
    #expect(try await job.value == 1)
  }

  @Test func `runs on the queue it was given`() async throws {
    let tag = Promise<String?>()
    let far = taggedQueue("far")
    co_launch {}.finally(on: far) { tag.fulfill(currentTag) }
    #expect(try await onCoroutine { try co_await(tag) } == "far")
  }

  @Test func `without a queue it runs on the attaching coroutine's`() async throws {
    let seen = try await onCoroutine(on: taggedQueue("attaching")) {
      let tag = Promise<String?>()
      co_launch(on: taggedQueue("job")) {}.finally { tag.fulfill(currentTag) }
      return try co_await(tag)
    }
    #expect(seen == "attaching")
  }

  @Test func `runs also if attached on a plain thread`() async throws {
    let ran = Gate()
    let job = co_launch { 1 }
    try await onOwnThread { job.finally { ran.open() } }
    try await onCoroutine { try ran.pass() }
    #expect(try await job.value == 1)
  }

  @Test func `does not count as a joiner: the failure still reaches the hook`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("alone")
    co_launch { () throws -> Void in throw failure }.finally {}
    _ = try await errors.jobs(count: 1)
    #expect(try await errors.settledLabels() == ["alone"])
  }

  @Test func `its captures are released after it ran`() async throws {
    let released = Gate()
    let job = attach(Tracked { released.open() }, to: co_launch {})
    try await onCoroutine { try released.pass() }
    try await job.value
  }

  private func attach(_ held: Tracked, to job: Job<Void>) -> Job<Void> {
    job.finally { held.use() }
  }
}
