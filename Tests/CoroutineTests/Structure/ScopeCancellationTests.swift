import Coroutine
import Testing

@Suite("Cancelling scopes", .timeLimit(.minutes(10)))
struct ScopeCancellationTests {
  @Test func `after scope.cancel() a body that returns a value still succeeds`() async throws {
    let seen = try await onSerialQueue {
      let child = Promise<String>()
      let value = try co_scope { scope in
        scope.launch { child.fulfill(outcome { try waitForCancellation() }) }
        try co_yield()
        scope.cancel()
        return "value"
      }
      return [value, try co_await(child), "\(co_isCancelled)"]
    }
    #expect(seen == ["value", "CancellationError", "false"])
  }

  @Test func `scope.cancel ends the body's next suspension, and its reason reaches every child`() async throws {
    let seen = try await onSerialQueue {
      let child = Promise<String>()
      let body = Trace()
      let end = outcome {
        try co_scope { scope in
          scope.launch { child.fulfill(outcome { try waitForCancellation() }) }
          try co_yield()
          scope.cancel(Oops("reason"))
          body("still here")
          try co_yield()
          body("never reached")
        }
      }
      return body.all + [try co_await(child), end, outcome { try co_yield() }]
    }
    #expect(seen == ["still here", "Oops(reason)", "Oops(reason)", "()"])
  }

  @Test func `a child launched after scope.cancel never runs`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      try co_scope { scope in
        scope.cancel(Oops("closed"))
        let late = scope.launch { trace("late") }
        return co_shield { outcome { try late.join() } }
      }
    }
    #expect(seen == "Oops(closed)")
    #expect(trace.all.isEmpty)
  }

  @Test func `cancelling the coroutine cancels body and children, all with its reason`() async throws {
    let seen = try await onSerialQueue {
      let trace = Trace()
      let job = co_launch {
        let end = outcome {
          try co_scope { scope in
            for n in 1...2 { scope.launch { trace("\(n) \(outcome { try waitForCancellation() })") } }
            trace("body \(outcome { try waitForCancellation() })")
            try co_yield()
          }
        }
        return end
      }
      try co_yield()
      try co_yield()
      job.cancel(Oops("outer"))
      let end = try job.join()
      return trace.all.sorted() + [end]
    }
    #expect(seen == ["1 Oops(outer)", "2 Oops(outer)", "body Oops(outer)", "Oops(outer)"])
  }

  @Test(.inWorlds)
  func `a scope that waits for its children passes a cancellation on to them and still waits`() throws {
    let trace = Trace()
    let job = co_launch {
      try co_scope { scope in
        scope.launch {
          defer {
            co_shield {
              _ = outcome { try co_delay(.milliseconds(5)) }
              trace("child ended")
            }
          }
          try waitForCancellation()
        }
      }
    }
    try settleWorld()
    job.cancel(Oops("outer"))
    trace(outcome { try job.join() })
    #expect(trace.all == ["child ended", "Oops(outer)"])
    #expect(worldTime == .milliseconds(5))
  }

  @Test func `children are cancelled at once, also while the body does not check`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch {
        outcome {
          try co_scope { scope in
            let child = scope.launch { outcome { try waitForCancellation() } }
            return try co_shield { try child.join() }
          }
        }
      }
      for _ in 0..<3 { try co_yield() }
      job.cancel(Oops("outer"))
      return try job.join()
    }
    #expect(seen == "Oops(outer)")
  }

  @Test func `an inner scope's failure that is caught does not affect the outer children`() async throws {
    let seen = try await onSerialQueue {
      let gate = Gate()
      return try co_scope { outer in
        let sibling = outer.launch {
          try gate.pass()
          return "untouched"
        }
        let inner = outcome {
          try co_scope { scope in
            scope.launch { throw Oops("inner") }
            try waitForCancellation()
          }
        }
        gate.open()
        return [inner, try sibling.join()]
      }
    }
    #expect(seen == ["Oops(inner)", "untouched"])
  }

  @Test func `an outer cancellation reaches the last child through nested scopes`() async throws {
    let seen = try await onSerialQueue {
      let deepest = Promise<String>()
      let job = co_launch {
        try co_scope { outer in
          outer.launch {
            try co_scope { inner in
              inner.launch {
                try co_scope { innermost in
                  innermost.launch { deepest.fulfill(outcome { try waitForCancellation() }) }
                }
              }
            }
          }
        }
      }
      for _ in 0..<5 { try co_yield() }
      job.cancel(Oops("outer"))
      return [outcome { try job.join() }, try co_await(deepest)]
    }
    #expect(seen == ["Oops(outer)", "Oops(outer)"])
  }

  @Test func `an inner failure that is not caught passes through every scope`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      outcome {
        try co_scope { outer in
          outer.launch {
            defer { trace("outer sibling") }
            try waitForCancellation()
          }
          outer.launch {
            try co_scope { inner in
              inner.launch {
                defer { trace("inner sibling") }
                try waitForCancellation()
              }
              inner.launch { throw Oops("deep") }
            }
          }
        }
      }
    }
    #expect(seen == "Oops(deep)")
    #expect(trace.all == ["inner sibling", "outer sibling"])
  }

  @Test func `children on other queues are cancelled and awaited as well`() async throws {
    let trace = Trace()
    let seen = try await onCoroutine {
      outcome {
        try co_scope { scope in
          let started = (0..<4).map { n in
            let started = Gate()
            scope.launch(on: taggedQueue("child \(n)")) {
              defer { trace("ended") }
              started.open()
              try waitForCancellation()
            }
            return started
          }
          for gate in started { try gate.pass() }
          throw Oops("body")
        }
      }
    }
    #expect(seen == "Oops(body)")
    #expect(trace.all == Array(repeating: "ended", count: 4))
  }

  @Test func `a scope's reason is the first one given`() async throws {
    let seen = try await onSerialQueue {
      outcome {
        try co_scope { scope in
          scope.cancel(Oops("first"))
          scope.cancel(Oops("second"))
          try co_yield()
        }
      }
    }
    #expect(seen == "Oops(first)")
  }
}
