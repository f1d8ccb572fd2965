import Coroutine
import Dispatch
import Testing

@Suite("co_blocking", .timeLimit(.minutes(10)))
struct BlockingTests {
  @Test func `gives the work's value or its failure`() async throws {
    let seen = try await onCoroutine {
      [
        outcome { try co_blocking { 1 } },
        outcome { try co_blocking { () throws -> Int in throw Oops("work") } },
      ]
    }
    #expect(seen == ["1", "Oops(work)"])
  }

  @Test func `runs elsewhere, and the coroutine comes back to its queue`() async throws {
    let tags = try await onCoroutine(on: taggedQueue("home")) { [try co_blocking { currentTag }, currentTag] }
    #expect(tags == [nil, "home"])
  }

  @Test func `the queue goes on while the work blocks`() async throws {
    let value = try await onSerialQueue {
      let signal = DispatchSemaphore(value: 0)
      co_launch { signal.signal() }
      return try co_blocking {
        signal.wait()
        return "unblocked"
      }
    }
    #expect(value == "unblocked")
  }

  @Test func `bodies that wait for each other run at the same time`() async throws {
    let count = 4
    let met = try await onSerialQueue {
      let all = DispatchGroup()
      for _ in 0..<count { all.enter() }
      let jobs = (0..<count).map { _ in
        co_launch {
          try co_blocking {
            all.leave()
            return all.wait(timeout: .now() + 200) == .success
          }
        }
      }
      return try jobs.map { try $0.join() }
    }
    #expect(met == Array(repeating: true, count: count))
  }

  @Test func `more bodies than a pool has threads all end`() async throws {
    let sum = try await onSerialQueue {
      let jobs = (0..<1_000).map { n in co_launch { try co_blocking { n } } }
      return try jobs.reduce(0) { try $0 + $1.join() }
    }
    #expect(sum == 499_500)
  }

  @Test func `a cancelled wait throws at once, and the work ends unobserved`() async throws {
    let errors = UnhandledErrors()
    let failure = errors.failure("unobserved")
    let trace = Trace()
    let seen = try await onSerialQueue {
      let (started, workEnded) = (Gate(), Gate())
      let mayEnd = DispatchSemaphore(value: 0)
      let job = co_launch {
        try co_blocking {
          started.open()
          mayEnd.wait()
          trace("work ends")
          workEnded.open()
          throw failure
        }
      }
      try started.pass()
      job.cancel(Oops("reason"))
      let seen = outcome { try job.join() }
      trace("joined")
      mayEnd.signal()
      try workEnded.pass()
      return seen
    }
    #expect(seen == "Oops(reason)")
    #expect(trace.all == ["joined", "work ends"])
    #expect(try await errors.settledLabels().isEmpty)
  }

  // The work goes on, on a real thread, after the wait has ended.
  @Test(.tags(.realClock)) func `a deadline ends the wait, not the work`() async throws {
    let seen = try await onCoroutine {
      let workEnded = Gate()
      let mayEnd = DispatchSemaphore(value: 0)
      let hasBegun = Flag()
      var seen: [String] = []
      // The same if the deadline comes before a thread is free: work that has not started is withdrawn.
      while !hasBegun.isRaised {
        seen.append(
          outcome {
            try co_timeout(.milliseconds(3)) {
              try co_blocking {
                hasBegun.raise()
                mayEnd.wait()
                workEnded.open()
              }
            }
          }
        )
      }
      for _ in seen { mayEnd.signal() }
      try workEnded.pass()
      return Set(seen)
    }
    #expect(seen == ["TimeoutError"])
  }

  @Test func `what the work captured and returned is released`() async throws {
    let (captured, result) = (Gate(), Gate())
    try await onCoroutine {
      try Self.hold(Tracked { captured.open() }, Tracked { result.open() })
      try captured.pass()
      try result.pass()
    }
  }

  private static func hold(_ captured: Tracked, _ result: Tracked) throws {
    let same = try co_blocking {
      captured.use()
      return result
    }
    same.use()
  }

  @Test func `in the work no coroutine is current`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch {
        try co_blocking { "\(co_isCancelled)" }
      }
      return try job.join()
    }
    #expect(seen == "false")
  }
}
