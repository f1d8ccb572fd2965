import Coroutine
import Testing

@Suite("co_scope", .timeLimit(.minutes(10)))
struct ScopeTests {
  @Test(.inWorlds) func `returns the body's value after every child has ended`() throws {
    let trace = Trace()
    let value = try co_scope { scope in
      for n in 1...3 {
        scope.launch {
          try co_delay(.milliseconds(n))
          trace("child \(n)")
        }
      }
      trace("body")
      return 9
    }
    trace("returned \(value)")
    #expect(trace.all == ["body", "child 1", "child 2", "child 3", "returned 9"])
    #expect(worldTime == .milliseconds(3))
  }

  @Test func `without children it returns what the body returns`() async throws {
    #expect(try await onCoroutine { try co_scope { _ in "empty" } } == "empty")
  }

  @Test func `children run on the queue of the coroutine, or on their own, with their given names`()
    async throws
  {
    let other = taggedQueue("other")
    let seen = try await onCoroutine(on: taggedQueue("home")) {
      try co_scope { scope in
        let here = scope.launch(name: "here") { currentTag }
        let there = scope.launch(on: other) { currentTag }
        return [here.name, try here.join(), there.name, try there.join()]
      }
    }
    #expect(seen == ["here", "home", nil, "other"])
  }

  @Test func `the body can join its children`() async throws {
    let sum = try await onCoroutine {
      try co_scope { scope in
        let jobs = (1...10).map { n in
          scope.launch {
            try co_yield()
            return n
          }
        }
        return try jobs.reduce(0) { try $0 + $1.join() }
      }
    }
    #expect(sum == 55)
  }

  // MARK: failures

  @Test(.inWorlds) func `a child's failure cancels its siblings and is rethrown after they have ended`() throws {
    let trace = Trace()
    let end = outcome {
      try co_scope { scope in
        for n in 1...2 {
          scope.launch {
            defer { co_shield { trace("sibling \(n) \(outcome { try co_delay(.milliseconds(2)) })") } }
            try waitForCancellation()
          }
        }
        scope.launch {
          try co_delay(.milliseconds(1))
          throw Oops("child")
        }
      }
    }
    trace(end)
    #expect(trace.all.sorted() == ["Oops(child)", "sibling 1 ()", "sibling 2 ()"])
    #expect(trace.all.last == "Oops(child)")
    #expect(worldTime == .milliseconds(3))
  }

  @Test func `a child's failure ends the body's wait with a cancellation`() async throws {
    let seen = try await onSerialQueue {
      let body = Trace()
      let end = outcome {
        try co_scope { scope in
          scope.launch { throw Oops("child") }
          body(outcome { try waitForCancellation() })
          try co_yield()
        }
      }
      return body.all + [end, "\(co_isCancelled)", outcome { try co_yield() }]
    }
    #expect(seen == ["CancellationError", "Oops(child)", "false", "()"])
  }

  @Test func `a child's failure is rethrown even if the body joined it and returned a value`() async throws {
    let seen = try await onSerialQueue {
      let body = Trace()
      let end = outcome {
        try co_scope { scope in
          let child = scope.launch { () throws -> Int in throw Oops("child") }
          body(outcome { try child.join() })
          return 1
        }
      }
      return body.all + [end]
    }
    #expect(seen.last == "Oops(child)")
  }

  @Test func `the body's failure cancels the children and is rethrown after they have ended`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let end = outcome {
        try co_scope { scope in
          scope.launch {
            defer { trace("child ended") }
            try waitForCancellation()
          }
          try co_yield()
          throw Oops("body")
        }
      }
      trace(end)
    }
    #expect(trace.all == ["child ended", "Oops(body)"])
  }

  @Test func `of several failures the first is rethrown, later ones go to the hook`() async throws {
    let errors = UnhandledErrors()
    let second = errors.failure("second")
    let third = errors.failure("third")
    let seen = try await onSerialQueue {
      outcome {
        try co_scope { scope in
          for failure in [second, third] {
            scope.launch {
              do {
                try waitForCancellation()
              } catch {
                throw failure
              }
            }
          }
          scope.launch { throw Oops("first") }
        }
      }
    }
    #expect(seen == "Oops(first)")
    _ = try await errors.jobs(count: 2)
    #expect(try await errors.settledLabels().sorted() == ["second", "third"])
  }

  @Test func `neither the rethrown failure nor cancellations go to the hook`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("first")
    let seen = try await onSerialQueue {
      outcome {
        try co_scope { scope in
          scope.launch { try waitForCancellation() }
          scope.launch { throw failure }
        }
      }
    }
    #expect(seen == "Failure(first)")
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `a child's failure after the body's end still cancels the siblings`() async throws {
    let seen = try await onSerialQueue {
      let bodyEnded = Gate()
      return outcome {
        try co_scope { scope in
          scope.launch { try waitForCancellation() }
          scope.launch {
            try bodyEnded.pass()
            throw Oops("late")
          }
          bodyEnded.open()
        }
      }
    }
    #expect(seen == "Oops(late)")
  }
}
