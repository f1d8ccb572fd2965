import Coroutine
import Testing

@Suite("co_supervise", .timeLimit(.minutes(1)))
struct SuperviseTests {
  @Test func `a child's failure affects neither siblings nor the body, and reaches the joiners of that child`()
    async throws
  {
    let seen = try await onSerialQueue {
      let gate = Gate()
      return try co_supervise { scope in
        let sibling = scope.launch {
          try gate.pass()
          return "untouched"
        }
        let failing = scope.launch { () throws -> Int in throw Oops("child") }
        let first = outcome { try failing.join() }
        let body = outcome { try co_yield() }
        gate.open()
        return [first, body, try sibling.join()]
      }
    }
    #expect(seen == ["Oops(child)", "()", "untouched"])
  }

  @Test func `a failure that is never joined reaches the hook, and the value is returned`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("unjoined")
    let value = try await onSerialQueue {
      try co_supervise { scope in
        scope.launch { throw failure }
        return "value"
      }
    }
    #expect(value == "value")
    _ = try await errors.jobs(count: 1)
    #expect(try await errors.settledLabels() == ["unjoined"])
  }

  @Test func `a failure that was joined does not reach the hook`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("joined")
    let seen = try await onSerialQueue {
      try co_supervise { scope in
        let child = scope.launch { () throws -> Void in throw failure }
        return outcome { try child.join() }
      }
    }
    #expect(seen == "Failure(joined)")
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `a failed job that the body returns is reported as soon as the result is released unjoined`() async throws
  {
    let errors = UnhandledErrors()
    let seen = try await onSerialQueue {
      try co_supervise { scope in scope.launch(name: "discarded") { throw errors.failure("discarded") } }
      let afterDiscarding = errors.labels
      var kept: Job<Void>? = try co_supervise { scope in
        scope.launch(name: "kept") { throw errors.failure("kept") }
      }
      let whileKept = errors.labels
      withExtendedLifetime(kept) {}
      kept = nil
      return [afterDiscarding, whileKept, errors.labels]
    }
    #expect(seen == [["discarded"], ["discarded"], ["discarded", "kept"]])
    let jobs = try await errors.jobs(count: 2)
    #expect(jobs[0].hasPrefix("\"discarded\" "))
    #expect(jobs[1].hasPrefix("\"kept\" "))
  }

  @Test func `a failed job that the body returns is not reported if the caller joins it`() async throws {
    let errors = UnhandledErrors()
    let seen = try await onSerialQueue {
      let jobs = try co_supervise { scope in
        (1...3).map { number in scope.launch { () throws -> Void in throw errors.failure("joined \(number)") } }
      }
      return jobs.map { job in outcome { try job.join() } }
    }
    #expect(seen == (1...3).map { "Failure(joined \($0))" })
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `returns after every child has ended`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      try co_supervise { scope in
        scope.launch {
          try co_delay(.milliseconds(3))
          trace("child")
        }
      }
      trace("returned")
    }
    #expect(trace.all == ["child", "returned"])
  }

  @Test func `the body's failure cancels the children, and waits for them`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      outcome {
        try co_supervise { scope in
          scope.launch {
            defer { trace("child ended") }
            try waitForCancellation()
          }
          try co_yield()
          throw Oops("body")
        }
      }
    }
    #expect(seen == "Oops(body)")
    #expect(trace.all == ["child ended"])
  }

  @Test func `scope.cancel and the coroutine's own cancellation reach every child`() async throws {
    let seen = try await onSerialQueue {
      let trace = Trace()
      try co_supervise { scope in
        scope.launch { trace("first \(outcome { try waitForCancellation() })") }
        try co_yield()
        scope.cancel(Oops("scope"))
      }
      let job = co_launch {
        try co_supervise { scope in
          scope.launch { trace("second \(outcome { try waitForCancellation() })") }
        }
      }
      for _ in 0..<3 { try co_yield() }
      job.cancel(Oops("outer"))
      return trace.all + [outcome { try job.join() }] + trace.all.suffix(1)
    }
    #expect(seen == ["first Oops(scope)", "Oops(outer)", "second Oops(outer)"])
  }
}
