import Dispatch
import Testing

@testable import Coroutine

@Suite("co_timeout", .inWorlds, .timeLimit(.minutes(10)))
struct TimeoutTests {
  @Test func `a body that ends in time returns its value or throws its failure`() throws {
    let seen = [
      outcome { try co_timeout(.seconds(60)) { 1 } },
      outcome {
        try co_timeout(.seconds(60)) {
          try co_yield()
          return 2
        }
      },
      outcome {
        try co_timeout(.seconds(60)) {
          try co_delay(.nanoseconds(59_999_999_999))
          return 3
        }
      },
      outcome { try co_timeout(.seconds(60)) { () throws -> Int in throw Oops("body") } },
    ]
    #expect(seen == ["1", "2", "3", "Oops(body)"])
    #expect(worldTime == .nanoseconds(59_999_999_999))
  }

  @Test func `a body that runs too long is ended: CancellationError inside, TimeoutError outside`() throws {
    let inside = Trace()
    let end = outcome {
      try co_timeout(.milliseconds(3)) {
        inside(outcome { try waitForCancellation() })
        inside("\(co_isCancelled)")
        inside(outcome { try co_yield() })
        try co_checkCancelled()
      }
    }
    #expect(inside.all + [end] == ["CancellationError", "true", "CancellationError", "TimeoutError"])
    #expect(worldTime == .milliseconds(3))
  }

  @Test func `TimeoutError is not a CancellationError`() throws {
    #expect(throws: TimeoutError.self) { try co_timeout(.milliseconds(1)) { try waitForCancellation() } }
    #expect(!((TimeoutError() as any Error) is CancellationError))
  }

  @Test(arguments: [1, 999_999, 15_000_000, 3_600_000_000_001])
  func `is never early, and in a world never late`(nanoseconds: Int) throws {
    let seen = outcome { try co_timeout(.nanoseconds(nanoseconds)) { try waitForCancellation() } }
    #expect(seen == "TimeoutError")
    #expect(worldTime == .nanoseconds(nanoseconds))
  }

  @Test(arguments: [Duration.zero, .nanoseconds(-1), .seconds(-5), .seconds(Int64.min / 2)])
  func `of zero or less never runs its body`(duration: Duration) throws {
    let trace = Trace()
    let seen = outcome { try co_timeout(duration) { trace("body") } }
    #expect(seen == "TimeoutError")
    #expect(trace.all.isEmpty)
  }

  @Test(arguments: [Duration.seconds(Int64.max), .nanoseconds(Int64.max)])
  func `of the longest durations never ends its body`(duration: Duration) throws {
    let seen = outcome {
      try co_timeout(duration) {
        try co_delay(.seconds(1_000_000_000))
        return 1
      }
    }
    #expect(seen == "1")
  }

  @Test func `of nil only calls its body`() throws {
    let (_, job) = try Carrier.requireJob()
    let frames = job.pointee.frames
    let isSame = try co_timeout(nil) {
      try co_delay(.seconds(1_000_000_000))
      return job.pointee.frames == frames
    }
    #expect(isSame)
    #expect(outcome { try co_timeout(nil) { throw Oops() } } == "Oops()")
  }

  @Test(arguments: [Duration?.none, Duration(attoseconds: .max)])
  func `without an end leaves enclosing deadlines, shields and cancellations as they are`(limit: Duration?) throws {
    let seen = outcome { try co_timeout(.seconds(1)) { try co_timeout(limit) { try waitForCancellation() } } }
    #expect(seen == "TimeoutError")
    #expect(worldTime == .seconds(1))
    // The inner deadline of two is not masked either.
    #expect(
      outcome { try co_timeout(limit) { try co_timeout(.seconds(1)) { try co_delay(.seconds(9)) } } } == "TimeoutError"
    )
    let job = co_launch { try co_timeout(limit) { try waitForCancellation() } }
    try settleWorld()
    job.cancel(Oops("end"))
    #expect(outcome { try job.join() } == "Oops(end)")
    let shielded = co_launch { try co_shield { try co_timeout(limit) { try co_delay(.seconds(1)) } } }
    try settleWorld()
    shielded.cancel()
    #expect(outcome { try shielded.join() } == "()")
  }

  @Test func `afterwards the coroutine is not cancelled, and can wait`() throws {
    let first = outcome { try co_timeout(.milliseconds(2)) { try waitForCancellation() } }
    let seen = [first, "\(co_isCancelled)", outcome { try co_delay(.milliseconds(2)) }]
    #expect(seen == ["TimeoutError", "false", "()"])
    #expect(worldTime == .milliseconds(4))
  }

  @Test func `a deadline that was met does not expire later`() throws {
    let kept = outcome { try co_timeout(.milliseconds(10)) { "kept" } }
    let seen = [kept, outcome { try co_delay(.milliseconds(30)) }]
    #expect(seen == ["kept", "()"])
    #expect(worldTime == .milliseconds(30))
  }

  // MARK: nested deadlines

  @Test func `an earlier outer deadline passes through the inner one as CancellationError`() throws {
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
    #expect(trace.all + [outer] == ["CancellationError", "TimeoutError"])
    #expect(worldTime == .milliseconds(3))
  }

  @Test func `an earlier inner deadline is TimeoutError between the two, and the outer body continues`() throws {
    let seen = outcome {
      try co_timeout(.seconds(3600)) {
        let inner = outcome { try co_timeout(.milliseconds(3)) { try waitForCancellation() } }
        try co_delay(.milliseconds(1))
        return "\(inner), then on"
      }
    }
    #expect(seen == "TimeoutError, then on")
    #expect(worldTime == .milliseconds(4))
  }

  @Test func `an outer deadline that an inner body has swallowed ends the next wait after it`() throws {
    let seen = outcome {
      try co_timeout(.milliseconds(3)) {
        let inner = outcome { try co_timeout(.seconds(3600)) { outcome { try waitForCancellation() } } }
        return "\(inner), then \(outcome { try co_yield() })"
      }
    }
    #expect(seen == "CancellationError, then CancellationError")
    #expect(worldTime == .milliseconds(3))
  }

  @Test func `the earliest counts at any depth`() throws {
    let trace = Trace()
    func nest(_ durations: ArraySlice<Duration>) throws {
      guard let first = durations.first else { return try waitForCancellation() }
      do {
        try co_timeout(first) { try nest(durations.dropFirst()) }
      } catch {
        trace(name(of: error))
        throw error
      }
    }
    let seen = outcome { try nest([.seconds(900), .milliseconds(3), .seconds(600), .seconds(300)]) }
    #expect(trace.all == ["CancellationError", "CancellationError", "TimeoutError", "TimeoutError"])
    #expect(seen == "TimeoutError")
    #expect(worldTime == .milliseconds(3))
  }

  @Test func `two deadlines at once end both bodies, and the outermost throws TimeoutError`() throws {
    let trace = Trace()
    let seen = outcome {
      try co_timeout(.milliseconds(2)) {
        do {
          try co_timeout(.milliseconds(2)) { try waitForCancellation() }
        } catch {
          trace("inner ended")
          throw error
        }
      }
    }
    #expect(seen == "TimeoutError")
    #expect(trace.all == ["inner ended"])
    #expect(worldTime == .milliseconds(2))
  }

  // MARK: with cancellation and with scopes

  @Test func `a cancellation before the deadline is thrown as itself, inside and outside`() throws {
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
    try settleWorld()
    job.cancel(Oops("cancelled"))
    #expect(try job.join() == ["Oops(cancelled)", "Oops(cancelled)"])
    #expect(worldTime == .zero)
  }

  @Test func `a deadline reaches the children of the scopes within`() throws {
    let trace = Trace()
    let seen = outcome {
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
    #expect(seen == "TimeoutError")
    #expect(trace.all.sorted() == ["child 1", "child 2", "child 3"])
    #expect(worldTime == .milliseconds(3))
  }

  @Test func `a job launched within, outside a scope, outlives the deadline`() throws {
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
    #expect([first, try co_await(child).join()] == ["TimeoutError", "lives"])
  }
}

@Suite("co_timeout on the real clock", .tags(.realClock), .timeLimit(.minutes(10)))
struct TimeoutRealClockTests {
  // A deadline of production is a timer of Dispatch's clock or of a worker's poller, which no world has.
  @Test(arguments: [nil, taggedQueue("timed")]) func `is never early`(queue: DispatchQueue?) async throws {
    let (seen, elapsed) = try await onCoroutine(on: queue) {
      let start = ContinuousClock.now
      let seen = outcome { try co_timeout(.milliseconds(15)) { try waitForCancellation() } }
      return (seen, ContinuousClock.now - start)
    }
    #expect(seen == "TimeoutError")
    #expect(elapsed >= .milliseconds(15))
  }
}
