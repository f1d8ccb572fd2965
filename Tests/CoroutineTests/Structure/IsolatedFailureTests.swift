import Coroutine
import Testing

@Suite("co_scope with isolated failures", .timeLimit(.minutes(10)))
struct IsolatedFailureTests {
  @Test(.inWorlds)
  func `a child's failure affects neither siblings nor the body, and reaches the joiners of that child`() throws {
    let seen = try onWorldQueue {
      let gate = Gate()
      return try co_scope(failures: .isolated) { scope in
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

  @Test(.inWorlds) func `a failure that is never joined reaches the hook, and the value is returned`() throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("unjoined")
    let value = try onWorldQueue {
      try co_scope(failures: .isolated) { scope in
        scope.launch { throw failure }
        return "value"
      }
    }
    #expect(value == "value")
    try settleWorld()
    #expect(errors.labels == ["unjoined"])
  }

  @Test(.inWorlds) func `a failure that was joined does not reach the hook`() throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("joined")
    let seen = try onWorldQueue {
      try co_scope(failures: .isolated) { scope in
        let child = scope.launch { () throws -> Void in throw failure }
        return outcome { try child.join() }
      }
    }
    #expect(seen == "Failure(joined)")
    try settleWorld()
    #expect(errors.labels.isEmpty)
  }

  @Test(.inWorlds)
  func `a failed job that the body returns is reported as soon as the result is released unjoined`() throws {
    let errors = UnhandledErrors()
    let seen = try onWorldQueue {
      try co_scope(failures: .isolated) { scope in scope.launch(name: "discarded") { throw errors.failure("discarded") }
      }
      let afterDiscarding = errors.labels
      var kept: Job<Void>? = try co_scope(failures: .isolated) { scope in
        scope.launch(name: "kept") { throw errors.failure("kept") }
      }
      let whileKept = errors.labels
      withExtendedLifetime(kept) {}
      kept = nil
      return [afterDiscarding, whileKept, errors.labels]
    }
    #expect(seen == [["discarded"], ["discarded"], ["discarded", "kept"]])
    let jobs = errors.jobs
    #expect(jobs[0].hasPrefix("\"discarded\" "))
    #expect(jobs[1].hasPrefix("\"kept\" "))
  }

  @Test(.inWorlds) func `a failed job that the body returns is not reported if the caller joins it`() throws {
    let errors = UnhandledErrors()
    let seen = try onWorldQueue {
      let jobs = try co_scope(failures: .isolated) { scope in
        (1...3).map { number in scope.launch { () throws -> Void in throw errors.failure("joined \(number)") } }
      }
      return jobs.map { job in outcome { try job.join() } }
    }
    #expect(seen == (1...3).map { "Failure(joined \($0))" })
    try settleWorld()
    #expect(errors.labels.isEmpty)
  }

  @Test(.inWorlds) func `returns after every child has ended`() throws {
    let trace = Trace()
    try co_scope(failures: .isolated) { scope in
      scope.launch {
        try co_delay(.milliseconds(3))
        trace("child")
      }
    }
    trace("returned")
    #expect(trace.all == ["child", "returned"])
    #expect(worldTime == .milliseconds(3))
  }

  @Test(.inWorlds) func `the body's failure cancels the children, and waits for them`() throws {
    let trace = Trace()
    let seen = try onWorldQueue {
      outcome {
        try co_scope(failures: .isolated) { scope in
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

  @Test(.inWorlds) func `scope.cancel and the coroutine's own cancellation reach every child`() throws {
    let seen = try onWorldQueue {
      let trace = Trace()
      try co_scope(failures: .isolated) { scope in
        scope.launch { trace("first \(outcome { try waitForCancellation() })") }
        try co_yield()
        scope.cancel(Oops("scope"))
      }
      let job = co_launch {
        try co_scope(failures: .isolated) { scope in
          scope.launch { trace("second \(outcome { try waitForCancellation() })") }
        }
      }
      try settleWorld()
      job.cancel(Oops("outer"))
      return trace.all + [outcome { try job.join() }] + trace.all.suffix(1)
    }
    #expect(seen == ["first Oops(scope)", "Oops(outer)", "second Oops(outer)"])
  }
}
