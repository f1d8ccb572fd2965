import Coroutine
import CoroutineNet
import CoroutineTesting
import Dispatch
import Testing

/// Hosts whose clocks run at rates of their own.
@Suite(.timeLimit(.minutes(10)))
struct ClockTests {
  /// Runs `body` on a host whose clock runs at `rate`, and returns how much of the world's time it takes.
  private func time(atRate rate: Double, _ body: @escaping @Sendable () throws -> Void) throws -> Duration {
    let world = World()
    return try world.run {
      let taken = Promise<Duration>()
      world.network.setClockRate(rate, of: "host")
      world.network.host("host") {
        let start = world.now
        try body()
        taken.fulfill(world.now - start)
      }
      return try co_await(taken)
    }
  }

  /// One way of waiting for ten seconds.
  enum Wait: CaseIterable {
    case delay, timeout, select, promise, limiter, actor, otherQueue

    func callAsFunction() throws {
      switch self {
      case .delay: try co_delay(.seconds(10))
      case .timeout: _ = try? co_timeout(.seconds(10)) { try wait() }
      case .select: try co_select { SelectCase.onTimeout(.seconds(10)) {} }
      case .promise: try co_await(Promise<Void>.after(.seconds(10)))
      case .limiter:
        let limiter = RateLimiter(1, per: .seconds(10))
        for _ in 0..<2 { try limiter.acquire() }
      case .actor:
        let actor = co_actor(of: Int.self) { mailbox in
          mailbox.schedule(1, after: .seconds(10))
          _ = try mailbox.receive()
        }
        try actor.job.join()
      case .otherQueue:
        // The deadline moves to another scheduler, and keeps its time.
        _ = try? co_timeout(.seconds(10)) {
          try co_switch(to: DispatchQueue(label: "other"))
          try wait()
        }
      }
    }

    private func wait() throws { _ = try Channel<Int>().receive() }
  }

  @Test(arguments: Wait.allCases) func `a host's own clock measures every wait`(wait: Wait) throws {
    #expect(try time(atRate: 1) { try wait() } == .seconds(10))
    #expect(try time(atRate: 2) { try wait() } == .seconds(5))
    #expect(try time(atRate: 0.5) { try wait() } == .seconds(20))
  }

  @Test(arguments: [(1, true), (2, false)]) func `a restart limit counts by the supervisor's clock`(
    rate: Double,
    givesUp: Bool
  ) throws {
    let world = World()
    let hasGivenUp = try world.run {
      let end = Promise<Bool>()
      world.network.setClockRate(rate, of: "host")
      world.network.host("host") {
        let supervisor = Supervisor(limit: RestartLimit(restarts: 1, within: .seconds(10)))
        let actor = supervisor.actor(of: Int.self) { mailbox in while try mailbox.receive() != nil { throw Failed() } }
        try actor.tell(1)
        // Seven seconds of the world are fourteen of a clock that runs at twice its rate.
        try world.advance(by: .seconds(7))
        try actor.tell(2)
        try world.settle()
        end.fulfill(supervisor.job.isFinished)
        supervisor.cancel()
        _ = try? supervisor.job.join()
      }
      return try co_await(end)
    }
    #expect(hasGivenUp == givesUp)
  }

  private struct Failed: Error {}

  @Test func `hosts disagree, and the body keeps the world's time`() throws {
    let world = World()
    let log = Log()
    try world.run {
      for (name, rate) in [("slow", 0.8), ("fast", 1.25)] {
        world.network.host(name) {
          for _ in 0..<2 {
            try co_delay(.seconds(10))
            log("\(name) \(world.now)")
          }
        }
        world.network.setClockRate(rate, of: name)
      }
      try co_delay(.seconds(9))
      log("body \(world.now)")
      try co_delay(.seconds(17))
    }
    #expect(
      log.lines == [
        "fast 8.0 seconds", "body 9.0 seconds", "slow 12.5 seconds", "fast 16.0 seconds", "slow 25.0 seconds",
      ]
    )
  }

  @Test func `a lease that its holder renews in time ends early if the holder's clock is slow`() throws {
    /// A holder renews a lease of ten seconds each eight seconds; the server ends it after ten seconds of its own.
    func run(_ rate: Double) -> Exploration {
      explore(.random(seeds: 20)) {
        let world = World.current!
        world.network.setClockRate(rate, of: "holder")
        world.network.host("server") {
          let listener = try Listener.bind(.any(port: 1))
          let connection = try listener.accept()
          while true {
            let bytes = try co_timeout(.seconds(10)) { try connection.read(upTo: 1) }
            if bytes.isEmpty { return }
          }
        }
        try world.settle()
        let isDone = Promise<Void>()
        world.network.host("holder") {
          let connection = try Connection.connect(host: "server", port: 1)
          for _ in 0..<20 {
            try connection.write([1])
            try co_delay(.seconds(8))
          }
          isDone.fulfill()
        }
        try co_await(isDone)
      }
    }
    #expect(run(1).failure == nil)
    #expect(run(0.9).failure == nil)
    let failure = try #require(run(0.75).failure)
    #expect(failure.error is TimeoutError)
  }

  @Test func `a running timer keeps its end, and the clock does not jump`() throws {
    let world = World()
    let log = Log()
    try world.run {
      world.network.host("host") {
        let limiter = RateLimiter(1, per: .seconds(10))
        try limiter.acquire()
        try co_delay(.seconds(4))
        log("\(world.now)")
        world.network.setClockRate(2, of: "host")
        log("\(limiter.tryAcquire())")
        // Six seconds of the host are missing.
        try limiter.acquire()
        log("\(world.now)")
      }
      try co_delay(.seconds(2))
      world.network.setClockRate(0.5, of: "host")
      try co_delay(.seconds(100))
    }
    // Two seconds at rate 1 and two at rate 0.5 are three of the host, so seven are missing.
    #expect(log.lines == ["4.0 seconds", "false", "7.5 seconds"])
  }

  @Test func `what measures time in the whole process counts anew in each world`() throws {
    let early = (limiter: RateLimiter(1, per: .seconds(1), burst: 2), ticker: co_ticker(every: .seconds(10)))
    let made = Log()
    // Sound because one world after the other runs, on this thread. Made in a world, and used in others.
    nonisolated(unsafe) var late = early
    try World().run {
      try co_delay(.seconds(3_514))
      late = (RateLimiter(1, per: .seconds(1), burst: 2), co_ticker(every: .seconds(10)))
      for _ in 0..<100 { try late.limiter.acquire() }
      #expect(try late.ticker.next() == 9)
    }
    for round in 0..<2 {
      for (limiter, ticker) in [early, late] {
        let world = World()
        try world.run {
          let start = world.now
          for _ in 0..<3 { try limiter.acquire() }
          let acquired = world.now - start
          let ticks = try ticker.next()
          made("\(round): \(acquired), \(ticks) at \(world.now - start)")
        }
      }
      #expect(late.limiter.tryAcquire(round == 0 ? 2 : 0) && early.limiter.tryAcquire(round == 0 ? 2 : 0))
    }
    #expect(late.ticker.timeLeft > .zero && late.ticker.timeLeft <= .seconds(10))
    #expect(
      made.lines == (0..<2).flatMap { round in Array(repeating: "\(round): 1.0 seconds, 1 at 11.0 seconds", count: 2) }
    )
  }

  @Test func `the world's own times do not depend on the caller's clock`() throws {
    let world = World()
    let log = Log()
    try world.run {
      world.network.setClockRate(10, of: "host")
      world.network.setLatency(.seconds(3) ... .seconds(3), from: "host", to: "body")
      let listener = try Listener.bind(.any(port: 1))
      world.network.host("host") {
        let connection = try Connection.connect(host: "body", port: 1)
        let start = world.now
        try connection.write([1])
        try world.advance(by: .seconds(20))
        log("advanced by \(world.now - start)")
        connection.close()
        // A promise's handler is on the host that has attached it.
        let first = world.now
        try co_await(Promise.value(1).delay(.seconds(10)).then { _ in })
        log("a handler's timer took \(world.now - first)")
      }
      let connection = try listener.accept()
      let start = world.now
      _ = try connection.read(upTo: 1)
      log("a byte came after \(world.now - start)")
      _ = try? connection.read(upTo: 1)
      try co_delay(.seconds(60))
    }
    #expect(
      log.lines == [
        "a byte came after 3.0 seconds", "advanced by 20.0 seconds", "a handler's timer took 1.0 seconds",
      ]
    )
  }

  @Test func `a clock survives the crash of its host`() throws {
    let world = World()
    let log = Log()
    try world.run {
      world.network.host("host") {
        let start = world.now
        try co_delay(.seconds(10))
        log("\(world.now - start)")
      }
      world.network.setClockRate(4, of: "host")
      try co_delay(.seconds(1))
      world.network.restart("host")
      try co_delay(.seconds(10))
    }
    #expect(log.lines == ["2.5 seconds"])
  }

  @Test func `a clock of a host that is never added fails the run`() {
    let world = World()
    world.network.setClockRate(2, of: "hots")
    let error = #expect(throws: World.UnknownHostError.self) { try world.run {} }
    #expect(error?.name == "hots")
  }

  @Test(arguments: ["0", "-1", "1001", "nan", "inf"]) func `a rate that no clock has traps`(rate: String) async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      [rate = rate as String] in
      World().network.setClockRate(Double(rate)!, of: "host")
    }
    let said = result.map { String(decoding: $0.standardErrorContent, as: UTF8.self) } ?? ""
    #expect(said.contains("a clock runs at a rate from 0.001 to 1000"))
  }

  @Test(arguments: [0.001, 0.3, 1, 1.7, 1000]) func `equal instants are equal for all coroutines of a host`(
    rate: Double
  ) throws {
    let world = World()
    try world.run {
      world.network.setClockRate(rate, of: "host")
      let times = Promise<Set<Duration>>()
      world.network.host("host") {
        let instant = co_now.advanced(by: .seconds(10))
        let woken = Locked<Set<Duration>>([])
        try co_scope { scope in
          for number in 0..<10 {
            scope.launch {
              try co_delay(.nanoseconds(number * 777))
              try co_delay(until: instant)
              #expect(co_now >= instant)
              let now = world.now
              woken.withLock { _ = $0.insert(now) }
            }
          }
        }
        times.fulfill(woken.current)
      }
      let all = try co_await(times)
      #expect(all.count == 1)
    }
  }

  @Test func `the body's clock is the world's`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      World().network.setClockRate(2, of: "body")
    }
    let said = result.map { String(decoding: $0.standardErrorContent, as: UTF8.self) } ?? ""
    #expect(said.contains("the host \"body\" has the world's clock"))
  }
}
