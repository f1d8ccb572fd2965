import Coroutine
import CoroutineTesting
import Dispatch
import Testing

@Suite("co_delay", .timeLimit(.minutes(10)))
struct DelayTests {
  // A delay of production is a timer of Dispatch's clock, on the worker pool one of a worker's poller.
  @Test(.tags(.realClock), arguments: [1, 7, 30])
  func `is never early`(milliseconds: Int) async throws {
    let delay = Duration.milliseconds(milliseconds)
    let elapsed = try await onCoroutine {
      try (0..<5).map { _ in try ContinuousClock().measure { try co_delay(delay) } }
    }
    #expect(elapsed.allSatisfy { $0 >= delay }, "\(elapsed)")
  }

  // As above; a timer that counts milliseconds would round such a delay down to nothing.
  @Test(.tags(.realClock)) func `is never early below a millisecond either`() async throws {
    let delay = Duration.microseconds(50)
    let elapsed = try await onCoroutine {
      try (0..<20).map { _ in try ContinuousClock().measure { try co_delay(delay) } }
    }
    #expect(elapsed.allSatisfy { $0 >= delay }, "\(elapsed)")
  }

  @Test(.inWorlds, arguments: [Duration.nanoseconds(1), .microseconds(50), .milliseconds(7), .seconds(86_400 * 365)])
  func `in a world it is neither early nor late`(delay: Duration) throws {
    for number in 1...5 {
      try co_delay(delay)
      #expect(worldTime == delay * number)
    }
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

  @Test(.inWorlds) func `does not block the thread: the short delay ends while the long one waits`() throws {
    let trace = Trace()
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
    #expect(trace.all == ["launched", "short", "long"])
    #expect(worldTime == .milliseconds(500))
  }

  @Test(.inOneWorld) func `delays of equal length end in the order in which they began`() throws {
    let trace = Trace()
    let jobs = (0..<10).map { n in
      co_launch {
        try co_delay(.milliseconds(20))
        trace("\(n)")
      }
    }
    for job in jobs { try job.join() }
    #expect(trace.all == (0..<10).map(String.init))
    #expect(worldTime == .milliseconds(20))
  }

  /// How a coroutine waits until an instant.
  enum Until: CaseIterable, Sendable {
    case delay, timeout

    func wait(_ instant: CoroutineClock.Instant) throws {
      switch self {
      case .delay: try co_delay(until: instant)
      case .timeout:
        #expect(throws: TimeoutError.self) { try co_timeout(until: instant) { try co_delay(.seconds(3600)) } }
      }
    }
  }

  // A world's clock stands still between the calls.
  @Test(.tags(.realClock), arguments: Until.allCases)
  func `coroutines that wait for one instant continue in the order of their calls`(_ until: Until) async throws {
    var time = Duration.seconds(1)
    while true {
      let (set, woken) = (Trace(), Trace())
      let isInTime = try await onSerialQueue { [time] in
        let instant = co_now.advanced(by: time)
        let jobs = (0..<200).map { n in
          co_launch {
            set("\(n)")
            try until.wait(instant)
            woken("\(n)")
            #expect(co_now >= instant)
          }
        }
        // All of them wait by then.
        try co_yield()
        let isInTime = set.count == 200 && co_now < instant
        for job in jobs { try job.join() }
        return isInTime
      }
      // On a machine so slow that the instant has passed before the last of them waits, there is no order.
      if isInTime || time > .seconds(60) {
        #expect(woken.all == set.all)
        return
      }
      time *= 4
    }
  }

  @Test(.inWorlds, arguments: Until.allCases)
  func `until an instant it is neither early nor late, and one that has passed is no wait`(_ until: Until) throws {
    let start = co_now
    for (instant, time) in [(7, 7), (7, 7), (3, 7), (12, 12), (-1, 12)] {
      try until.wait(start.advanced(by: .milliseconds(instant)))
      #expect(worldTime == .milliseconds(time))
    }
  }

  @Test(.inWorlds) func `ends at once when cancelled`() throws {
    let job = co_launch { try co_delay(.seconds(3600)) }
    try settleWorld()
    job.cancel(Oops("awake"))
    #expect(outcome { try job.join() } == "Oops(awake)")
    #expect(worldTime == .zero)
  }

  @Test(.inWorlds, arguments: [Duration.seconds(Int64.max), .seconds(Int64.max / 2), .nanoseconds(Int64.max)])
  func `the longest durations wait, and can be cancelled`(duration: Duration) throws {
    let job = co_launch { try co_delay(duration) }
    try co_delay(.seconds(1_000_000_000))
    #expect(!job.isFinished)
    job.cancel()
    #expect(outcome { try job.join() } == "CancellationError")
  }

  // The queue's timer is Dispatch's: one for all of them, which must be set again for each.
  @Test(.tags(.realClock)) func `a thousand delays on one queue all end, none early`() async throws {
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

  @Test(.simulated(.random(seeds: 3))) func `a thousand delays end in the order of their deadlines`() throws {
    let delays = (0..<1_000).map { Duration.microseconds($0 * 37 % 20_000) }
    let late = Trace()
    let ended = Locked<[Duration]>([])
    try co_scope { scope in
      for delay in delays {
        scope.launch {
          try co_delay(delay)
          if worldTime != delay { late("\(delay) at \(worldTime)") }
          ended.withLock { $0.append(delay) }
        }
      }
    }
    #expect(late.all.isEmpty)
    #expect(ended.current == delays.sorted())
  }

  // In a world every queue runs on the world's thread.
  @Test(.tags(.realClock)) func `comes back to the coroutine's queue`() async throws {
    let tag = try await onCoroutine(on: taggedQueue("home")) {
      try co_delay(.milliseconds(1))
      return currentTag
    }
    #expect(tag == "home")
  }

  @Test(.inWorlds) func `a cancelled delay does not disturb the one after it`() throws {
    let first = outcome { try co_timeout(.milliseconds(2)) { try co_delay(.seconds(3600)) } }
    try co_delay(.milliseconds(30))
    #expect(first == "TimeoutError")
    #expect(worldTime == .milliseconds(32))
  }

  // Dispatch's timer was set for the cancelled delay, and then for the next one.
  @Test(.tags(.realClock)) func `on the real clock a cancelled delay does not disturb the one after it`() async throws {
    let (first, rest) = try await onSerialQueue {
      let first = outcome { try co_timeout(.milliseconds(2)) { try co_delay(.seconds(3600)) } }
      return (first, try ContinuousClock().measure { try co_delay(.milliseconds(30)) })
    }
    #expect(first == "TimeoutError")
    #expect(rest >= .milliseconds(30))
  }
}
