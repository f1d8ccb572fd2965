import Coroutine
import Dispatch
import Testing

@Suite("co_delay", .timeLimit(.minutes(1)))
struct DelayTests {
  @Test(arguments: [1, 7, 30])
  func `is never early`(milliseconds: Int) async throws {
    let delay = Duration.milliseconds(milliseconds)
    let elapsed = try await onCoroutine {
      try (0..<5).map { _ in try ContinuousClock().measure { try co_delay(delay) } }
    }
    #expect(elapsed.allSatisfy { $0 >= delay }, "\(elapsed)")
  }

  @Test func `is never early below a millisecond either`() async throws {
    let delay = Duration.microseconds(50)
    let elapsed = try await onCoroutine {
      try (0..<20).map { _ in try ContinuousClock().measure { try co_delay(delay) } }
    }
    #expect(elapsed.allSatisfy { $0 >= delay }, "\(elapsed)")
  }

  @Test(arguments: [Duration.zero, .seconds(-1), .nanoseconds(-1), .seconds(Int64.min / 2)])
  func `zero or less lets the others run once, as co_yield does`(duration: Duration) async throws {
    let trace = Trace()
    try await onSerialQueue {
      let job = co_launch {
        trace("other 1")
        try co_yield()
        trace("other 2")
      }
      try co_delay(duration)
      trace("back")
      try job.join()
    }
    #expect(trace.all == ["other 1", "back", "other 2"])
  }

  @Test func `does not block the thread: the short delay ends while the long one waits`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let long = co_launch {
        try co_delay(.milliseconds(500))
        trace("long")
      }
      let short = co_launch {
        try co_delay(.milliseconds(5))
        trace("short")
      }
      try co_yield()
      trace("launched")
      try short.join()
      try long.join()
    }
    #expect(trace.all == ["launched", "short", "long"])
  }

  @Test func `delays of equal length end in the order in which they began`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let jobs = (0..<10).map { n in
        co_launch {
          try co_delay(.milliseconds(20))
          trace("\(n)")
        }
      }
      for job in jobs { try job.join() }
    }
    #expect(trace.all == (0..<10).map(String.init))
  }

  @Test func `ends at once when cancelled`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch { try co_delay(.seconds(3600)) }
      try co_yield()
      job.cancel(Oops("awake"))
      return outcome { try job.join() }
    }
    #expect(seen == "Oops(awake)")
  }

  @Test(arguments: [Duration.seconds(Int64.max), .seconds(Int64.max / 2), .nanoseconds(Int64.max)])
  func `the longest durations wait, and can be cancelled`(duration: Duration) async throws {
    let seen = try await onSerialQueue {
      let job = co_launch { try co_delay(duration) }
      try co_delay(.milliseconds(2))
      let waiting = !job.isFinished
      job.cancel()
      return ["\(waiting)", outcome { try job.join() }]
    }
    #expect(seen == ["true", "CancellationError"])
  }

  @Test func `a thousand delays on one queue all end, none early`() async throws {
    let early = try await onSerialQueue {
      let clock = ContinuousClock()
      let jobs = (0..<1_000).map { n in
        co_launch {
          let delay = Duration.microseconds(n * 37 % 20_000)
          return try clock.measure { try co_delay(delay) } < delay
        }
      }
      return try jobs.filter { try $0.join() }.count
    }
    #expect(early == 0)
  }

  @Test func `comes back to the coroutine's queue`() async throws {
    let tag = try await onCoroutine(on: taggedQueue("home")) {
      try co_delay(.milliseconds(1))
      return currentTag
    }
    #expect(tag == "home")
  }

  @Test func `a cancelled delay does not disturb the one after it`() async throws {
    let elapsed = try await onSerialQueue {
      let clock = ContinuousClock()
      let job = co_launch {
        let first = outcome { try co_timeout(.milliseconds(2)) { try co_delay(.seconds(3600)) } }
        let rest = try clock.measure { try co_delay(.milliseconds(30)) }
        return (first, rest)
      }
      return try job.join()
    }
    #expect(elapsed.0 == "TimeoutError")
    #expect(elapsed.1 >= .milliseconds(30))
  }
}
