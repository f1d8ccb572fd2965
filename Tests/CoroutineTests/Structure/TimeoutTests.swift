import Coroutine
import Testing

@Suite("co_timeout", .timeLimit(.minutes(1)))
struct TimeoutTests {
  @Test func `a body that ends in time returns its value or throws its failure`() async throws {
    let seen = try await onCoroutine {
      [
        outcome { try co_timeout(.seconds(60)) { 1 } },
        outcome {
          try co_timeout(.seconds(60)) {
            try co_yield()
            return 2
          }
        },
        outcome { try co_timeout(.seconds(60)) { () throws -> Int in throw Oops("body") } },
      ]
    }
    #expect(seen == ["1", "2", "Oops(body)"])
  }

  @Test func `a body that runs too long is ended: CancellationError inside, TimeoutError outside`() async throws {
    let seen = try await onCoroutine {
      let inside = Trace()
      let end = outcome {
        try co_timeout(.milliseconds(3)) {
          inside(outcome { try waitForCancellation() })
          inside("\(co_isCancelled)")
          inside(outcome { try co_yield() })
          try co_checkCancelled()
        }
      }
      return inside.all + [end]
    }
    #expect(seen == ["CancellationError", "true", "CancellationError", "TimeoutError"])
  }

  @Test func `TimeoutError is not a CancellationError`() async throws {
    await #expect(throws: TimeoutError.self) {
      try await onCoroutine { try co_timeout(.milliseconds(1)) { try waitForCancellation() } }
    }
    #expect(!((TimeoutError() as any Error) is CancellationError))
  }

  @Test func `is never early`() async throws {
    let elapsed = try await onCoroutine {
      ContinuousClock().measure {
        _ = outcome { try co_timeout(.milliseconds(15)) { try waitForCancellation() } }
      }
    }
    #expect(elapsed >= .milliseconds(15))
  }

  @Test(arguments: [Duration.zero, .nanoseconds(-1), .seconds(-5), .seconds(Int64.min / 2)])
  func `of zero or less never runs its body`(duration: Duration) async throws {
    let trace = Trace()
    let seen = try await onCoroutine {
      outcome { try co_timeout(duration) { trace("body") } }
    }
    #expect(seen == "TimeoutError")
    #expect(trace.all.isEmpty)
  }

  @Test(arguments: [Duration.seconds(Int64.max), .nanoseconds(Int64.max)])
  func `of the longest durations never ends its body`(duration: Duration) async throws {
    let seen = try await onCoroutine {
      outcome {
        try co_timeout(duration) {
          try co_delay(.milliseconds(2))
          return 1
        }
      }
    }
    #expect(seen == "1")
  }

  @Test func `afterwards the coroutine is not cancelled, and can wait`() async throws {
    let seen = try await onCoroutine {
      let first = outcome { try co_timeout(.milliseconds(2)) { try waitForCancellation() } }
      return [first, "\(co_isCancelled)", outcome { try co_delay(.milliseconds(2)) }]
    }
    #expect(seen == ["TimeoutError", "false", "()"])
  }

  @Test func `a deadline that was met does not expire later`() async throws {
    let seen = try await onCoroutine {
      let kept = outcome { try co_timeout(.milliseconds(10)) { "kept" } }
      return [kept, outcome { try co_delay(.milliseconds(30)) }]
    }
    #expect(seen == ["kept", "()"])
  }

  // MARK: nested deadlines

  @Test func `an earlier outer deadline passes through the inner one as CancellationError`() async throws {
    let seen = try await onCoroutine {
      let trace = Trace()
      let outer = outcome {
        try co_timeout(.milliseconds(3)) {
          do {
            try co_timeout(.seconds(3600)) { try waitForCancellation() }
          } catch {
            trace(name(of: error))
            throw error
          }
        }
      }
      return trace.all + [outer]
    }
    #expect(seen == ["CancellationError", "TimeoutError"])
  }

  @Test func `an earlier inner deadline is TimeoutError between the two, and the outer body continues`() async throws {
    let seen = try await onCoroutine {
      outcome {
        try co_timeout(.seconds(3600)) {
          let inner = outcome { try co_timeout(.milliseconds(3)) { try waitForCancellation() } }
          try co_delay(.milliseconds(1))
          return "\(inner), then on"
        }
      }
    }
    #expect(seen == "TimeoutError, then on")
  }

  @Test func `the earliest counts at any depth`() async throws {
    let trace = Trace()
    let seen = try await onCoroutine {
      func nest(_ durations: ArraySlice<Duration>) throws {
        guard let first = durations.first else { return try waitForCancellation() }
        do {
          try co_timeout(first) { try nest(durations.dropFirst()) }
        } catch {
          trace(name(of: error))
          throw error
        }
      }
      return outcome { try nest([.seconds(900), .milliseconds(3), .seconds(600), .seconds(300)]) }
    }
    #expect(trace.all == ["CancellationError", "CancellationError", "TimeoutError", "TimeoutError"])
    #expect(seen == "TimeoutError")
  }

  @Test func `two deadlines at once end both bodies, and the outermost throws TimeoutError`() async throws {
    for _ in 0..<20 {
      let seen = try await onCoroutine {
        outcome {
          try co_timeout(.milliseconds(2)) {
            try co_timeout(.milliseconds(2)) { try waitForCancellation() }
          }
        }
      }
      #expect(seen == "TimeoutError")
    }
  }

  // MARK: with cancellation and with scopes

  @Test func `a cancellation before the deadline is thrown as itself, inside and outside`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch {
        let trace = Trace()
        let end = outcome {
          try co_timeout(.seconds(3600)) {
            trace(outcome { try waitForCancellation() })
            try co_yield()
          }
        }
        return trace.all + [end]
      }
      try co_yield()
      job.cancel(Oops("cancelled"))
      return try job.join()
    }
    #expect(seen == ["Oops(cancelled)", "Oops(cancelled)"])
  }

  @Test func `a deadline reaches the children of the scopes within`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      outcome {
        try co_timeout(.milliseconds(3)) {
          try co_scope { scope in
            for n in 1...3 {
              scope.launch {
                defer { trace("child \(n)") }
                try waitForCancellation()
              }
            }
          }
        }
      }
    }
    #expect(seen == "TimeoutError")
    #expect(trace.all.sorted() == ["child 1", "child 2", "child 3"])
  }

  @Test func `a job launched within, outside a scope, outlives the deadline`() async throws {
    let seen = try await onSerialQueue {
      let gate = Gate()
      let child = Promise<Job<String>>()
      let first = outcome {
        try co_timeout(.milliseconds(2)) {
          child.fulfill(
            co_launch {
              try gate.pass()
              return "lives"
            }
          )
          try waitForCancellation()
        }
      }
      gate.open()
      return [first, try co_await(child).join()]
    }
    #expect(seen == ["TimeoutError", "lives"])
  }
}
