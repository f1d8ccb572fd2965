import Coroutine
import Testing

@Suite("co_all, co_allSettled, co_any, co_race", .timeLimit(.minutes(10)))
struct CombinatorTests {
  /// A job that ends as `result` says after `delay` yields.
  private static func job(_ result: Result<Int, Oops>, after delay: Int = 0) -> Job<Int> {
    co_launch {
      for _ in 0..<delay { try co_yield() }
      return try result.get()
    }
  }

  private static func parked(_ trace: Trace) -> Job<Int> {
    co_launch {
      trace(outcome { try waitForCancellation() })
      try co_checkCancelled()
      return 0
    }
  }

  // MARK: the calling job

  @Test(arguments: 0..<4) func `a job that is among those it waits for throws`(_ form: Int) async throws {
    let own = Locked<Job<Void>?>(nil)
    let seen = try await onSerialQueue {
      let job = co_launch {
        try co_yield()
        let jobs = [co_launch { try waitForCancellation() }, own.current!]
        defer { jobs[0].cancel() }
        switch form {
        case 0: _ = try co_all(jobs)
        case 1: _ = try co_allSettled(jobs)
        case 2: _ = try co_any(jobs)
        default: _ = try co_race(jobs)
        }
      }
      own.withLock { $0 = job }
      defer { own.withLock { $0 = nil } }
      return outcome { try job.join() }
    }
    #expect(seen == "wouldDeadlock")
  }

  // MARK: all

  @Test func `co_all keeps the order, whichever job ends first`() async throws {
    let seen = try await onSerialQueue {
      try co_all((0..<10).map { n in Self.job(.success(n), after: 10 - n) })
    }
    #expect(seen == Array(0..<10))
  }

  @Test func `co_all of none is empty at once`() async throws {
    #expect(try await onCoroutine { try co_all([Promise<Int>]()) }.isEmpty)
  }

  @Test func `co_all throws the first failure in time, not in order`() async throws {
    let seen = try await onSerialQueue {
      outcome {
        try co_all([
          Self.job(.failure(Oops("later")), after: 5), Self.job(.success(1)),
          Self.job(.failure(Oops("first")), after: 1),
        ])
      }
    }
    #expect(seen == "Oops(first)")
  }

  @Test func `co_all does not wait for the others after a failure, and cancels them`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let parked = Self.parked(trace)
      let seen = outcome { try co_all([parked, Self.job(.failure(Oops("now")), after: 2)]) }
      return [seen, outcome { try parked.join() }]
    }
    #expect(seen == ["Oops(now)", "CancellationError"])
    #expect(trace.all == ["CancellationError"])
  }

  @Test func `co_all takes promises, the same one twice, and a thousand`() async throws {
    let seen = try await onSerialQueue {
      let promise = Promise<Int>()
      co_launch { promise.fulfill(2) }
      let twice = try co_all([promise, promise])
      let many = (0..<1_000).map { _ in Promise<Int>() }
      co_launch { for (n, promise) in many.enumerated().reversed() { promise.fulfill(n) } }
      return [twice, try co_all(many)]
    }
    #expect(seen == [[2, 2], Array(0..<1_000)])
  }

  // MARK: allSettled

  @Test func `co_allSettled returns every outcome in order and cancels no job`() async throws {
    let seen = try await onSerialQueue {
      try co_allSettled([
        Self.job(.success(1), after: 4), Self.job(.failure(Oops("two"))), Self.job(.success(3), after: 1),
      ])
      .map { outcome($0) }
    }
    #expect(seen == ["1", "Oops(two)", "3"])
  }

  @Test func `co_allSettled of none is empty at once`() async throws {
    #expect(try await onCoroutine { try co_allSettled([Promise<Int>]()).count } == 0)
  }

  // MARK: any

  @Test func `co_any returns the first success and skips failures`() async throws {
    let seen = try await onSerialQueue {
      try co_any([
        Self.job(.failure(Oops("fast"))), Self.job(.success(2), after: 5), Self.job(.success(3), after: 2),
      ])
    }
    #expect(seen == 3)
  }

  @Test func `co_any cancels the other jobs`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let parked = Self.parked(trace)
      let first = try co_any([parked, Self.job(.success(2), after: 1)])
      return ["\(first)", outcome { try parked.join() }]
    }
    #expect(seen == ["2", "CancellationError"])
    #expect(trace.all == ["CancellationError"])
  }

  @Test func `co_any without a success gives every failure, in order`() async throws {
    let seen = try await onSerialQueue {
      outcome {
        try co_any([
          Self.job(.failure(Oops("a")), after: 3), Self.job(.failure(Oops("b"))),
          Self.job(.failure(Oops("c")), after: 1),
        ])
      }
    }
    #expect(seen == "AggregateError[Oops(a), Oops(b), Oops(c)]")
  }

  @Test func `co_any of none is AggregateError of none`() async throws {
    let seen = try await onCoroutine { outcome { try co_any([Promise<Int>]()) } }
    #expect(seen == "AggregateError[]")
  }

  // MARK: race

  @Test func `co_race returns the first outcome, success or failure`() async throws {
    let seen = try await onSerialQueue {
      [
        outcome { try co_race([Self.job(.success(1), after: 3), Self.job(.success(2), after: 1)]) },
        outcome { try co_race([Self.job(.success(1), after: 3), Self.job(.failure(Oops("fast")), after: 1)]) },
      ]
    }
    #expect(seen == ["2", "Oops(fast)"])
  }

  @Test func `co_race cancels the other jobs`() async throws {
    let trace = Trace()
    let seen = try await onSerialQueue {
      let parked = (0..<3).map { _ in Self.parked(trace) }
      let first = try co_race(parked + [Self.job(.success(4), after: 1)])
      return ["\(first)"] + parked.map { job in outcome { try job.join() } }
    }
    #expect(seen == ["4", "CancellationError", "CancellationError", "CancellationError"])
    #expect(trace.all.count == 3)
  }

  @Test func `co_race of none is AggregateError of none`() async throws {
    let seen = try await onCoroutine { outcome { try co_race([Promise<Int>]()) } }
    #expect(seen == "AggregateError[]")
  }

  @Test func `a job that is settled already counts as first`() async throws {
    let seen = try await onCoroutine {
      // A new job for each: the other jobs are cancelled, which settles them.
      [try co_any([Promise<Int>(), Promise.value(1)]), try co_race([Promise<Int>(), Promise.value(2)])]
    }
    #expect(seen == [1, 2])
  }
}
