import CoroutineTesting
import Dispatch
import Testing

@testable import Coroutine

// `grep -rnE "public.*Duration|: Duration" Sources` lists the calls that take a duration. Each of them is here, but for
// `co_main`, which is in MainCoroutineTests, and those of other products:
// Tests/CoroutineTestingTests/ExtremeTests.swift has the worlds, Tests/CoroutineNetTests/ServerEndTests.swift the
// servers, and the drains of services and of servers on event loops are in the tests of these products.

/// The public calls that wait for a duration that the caller gives.
enum TimedCall: String, CaseIterable, Sendable {
  case delay, timeout, askTimeout, selectTimeout, selectMember, scopeStop
  case promiseAfter, promiseDelay, promiseTimeout, guaranteeDelay, guaranteeTimeout, retryConstant, retryClosure
  case timerAfter, timerEvery, rateLimiter, worldAdvance

  /// Whether only durations longer than zero are allowed; others trap with a sentence.
  var isPositive: Bool { [.timerEvery, .rateLimiter].contains(self) }

  /// Whether the call traps for a duration that is longer than zero: a limiter's period has a nanosecond or more.
  func refuses(_ duration: Duration) -> Bool { self == .rateLimiter && duration < .nanoseconds(1) }

  /// Returns when the duration has passed.
  func wait(_ duration: Duration) throws {
    switch self {
    case .delay: try co_delay(duration)
    case .timeout: try untilTimeout { try co_timeout(duration) { try waitForCancellation() } }
    case .scopeStop:
      let stopped = co_launch {
        try co_scope { scope in
          let child = scope.launch { try waitForCancellation() }
          scope.stop(within: duration)
          _ = try? child.join()
        }
      }
      defer { stopped.cancel() }
      try untilCancelled { try stopped.join() }
    case .selectTimeout: try co_select { SelectCase.onTimeout(duration) {} }
    case .selectMember:
      try co_select {
        Channel<Int>().onReceive { _ in }
          .onTimeout(duration) {}
      }
    case .worldAdvance: try World.current!.advance(by: duration)
    case .askTimeout, .timerAfter, .timerEvery: try waitWithActor(duration)
    case .rateLimiter:
      let limiter = RateLimiter(1, per: duration)
      _ = limiter.tryAcquire()
      try limiter.acquire()
    default: try waitForPromise(duration)
    }
  }

  private func waitForPromise(_ duration: Duration) throws {
    let never = Promise<Int>()
    switch self {
    case .promiseAfter: try co_await(Promise.after(duration))
    case .promiseDelay: _ = try co_await(Promise.value(1).delay(duration))
    case .promiseTimeout: try untilTimeout { _ = try co_await(never.timeout(duration)) }
    case .guaranteeDelay: _ = try co_await(Guarantee.value(1).delay(duration))
    case .guaranteeTimeout: try untilTimeout { _ = try co_await(Guarantee(never).promise.timeout(duration)) }
    case .retryConstant, .retryClosure:
      let backoff = self == .retryConstant ? Backoff.constant(duration) : Backoff { _ in duration }
      _ = try co_await(Promise.retry(attempts: 2, delay: backoff) { $0 == 1 ? .failure(Oops()) : .value(1) })
    default: preconditionFailure("\(self) is no call of promises")
    }
  }

  private func waitWithActor(_ duration: Duration) throws {
    switch self {
    case .askTimeout:
      let silent = co_actor(of: Question.self) { _ in try waitForCancellation() }
      defer { silent.cancel() }
      try untilTimeout { try silent.ask(timeout: duration) { Question(reply: $0) } }
    case .timerAfter, .timerEvery:
      let hasCome = Promise<Void>()
      let actor = co_actor(of: Question.self) { mailbox in
        if self == .timerAfter {
          mailbox.schedule(Question(), after: duration)
        } else {
          mailbox.schedule(Question(), every: duration)
        }
        _ = try mailbox.receive()
        hasCome.fulfill()
      }
      defer { actor.cancel() }
      try co_await(hasCome)
    default: preconditionFailure("\(self) is no call of actors")
    }
  }

  private func untilTimeout(_ body: () throws -> Void) throws {
    do { try body() } catch is TimeoutError {}
  }

  private func untilCancelled(_ body: () throws -> Void) throws {
    do { try body() } catch is CancellationError { try co_checkCancelled() }
  }
}

@Suite("Extreme durations", .timeLimit(.minutes(10)))
struct ExtremeDurationTests {
  /// Durations that no wait ends.
  static let endless: [Duration] = [
    .nanoseconds(Int64.max), .nanoseconds(Int64.max - 1), .seconds(Int64.max), .seconds(1e19),
    Duration(attoseconds: .max), Duration(secondsComponent: .max, attosecondsComponent: 999_999_999_999_999_999),
  ]

  /// Durations that have passed already.
  static let passed: [Duration] = [
    .zero, .nanoseconds(-1), Duration(attoseconds: -1), .seconds(-1), .nanoseconds(Int64.min), .seconds(Int64.min),
    .seconds(-1e19), Duration(attoseconds: .min),
  ]

  /// Durations of which a wait takes as many nanoseconds.
  static let finite: [(Duration, UInt64)] = [
    (Duration(attoseconds: 1), 1), (Duration(attoseconds: 999_999_999), 1), (.nanoseconds(1), 1),
    (Duration(attoseconds: 1_000_000_001), 2), (.seconds(18), 18_000_000_000),
    (.nanoseconds(18_446_744_074), 18_446_744_074), (.seconds(9_000_000_000), 9_000_000_000_000_000_000),
  ]

  @Test func `a duration is converted to nanoseconds, rounded up and clamped`() {
    for (duration, nanoseconds) in Self.finite {
      #expect(duration.nanoseconds == Int64(nanoseconds))
      #expect((.zero - duration).nanoseconds == -Int64((duration / .nanoseconds(1)).rounded(.down)))
    }
    for duration in Self.endless { #expect(duration.nanoseconds >= Int64.max - 1) }
    for duration in Self.passed { #expect(duration.nanoseconds <= 0) }
    #expect(Duration(attoseconds: -1).nanoseconds == 0)
    #expect(Duration(attoseconds: .min).nanoseconds == .min)
    #expect(Duration(attoseconds: .max).nanoseconds == .max)
  }

  @Test(arguments: [0, 1, 1_000_000_000, UInt64(Int64.max) - 1, UInt64(Int64.max), .max - 1, .max])
  func `a deadline is never before now, and never one that a clock reaches by overflow`(now: UInt64) {
    for duration in Self.endless + Self.passed + Self.finite.map(\.0) {
      let deadline = duration.deadline(after: now)
      #expect(deadline >= now)
      #expect(deadline < UInt64(Int64.max) || deadline == Duration.never)
      if duration <= .zero, now < UInt64(Int64.max) { #expect(deadline == now) }
    }
    for duration in Self.endless where now > 1 { #expect(duration.deadline(after: now) == Duration.never) }
  }

  @Test(.inOneWorld, arguments: TimedCall.allCases) func `a finite duration ends exactly`(call: TimedCall) throws {
    for (duration, nanoseconds) in Self.finite where nanoseconds < 4_000_000_000 && !call.refuses(duration) {
      let start = worldTime
      try call.wait(duration)
      #expect(worldTime - start == .nanoseconds(Int64(nanoseconds)), "\(duration)")
    }
  }

  // Once a world: after it, the world's clock has come far.
  @Test(.inOneWorld, arguments: TimedCall.allCases) func `two hundred and eighty-five years end`(call: TimedCall) throws
  {
    try call.wait(.seconds(9_000_000_000))
    #expect(worldTime == .seconds(9_000_000_000))
    // The time after it does not fit.
    let second = co_launch { try call.wait(.seconds(9_000_000_000)) }
    try co_delay(.seconds(100_000_000))
    #expect(!second.isFinished)
    second.cancel()
    #expect(outcome { try second.join() } == "CancellationError")
  }

  @Test(.inOneWorld, arguments: TimedCall.allCases.filter { !$0.isPositive })
  func `a duration that has passed takes no time`(call: TimedCall) throws {
    for duration in Self.passed {
      try call.wait(duration)
      #expect(worldTime == .zero, "\(duration)")
    }
  }

  @Test(.inOneWorld, arguments: TimedCall.allCases) func `an endless duration waits until it is cancelled`(
    call: TimedCall
  ) throws {
    let jobs = Self.endless.map { duration in co_launch { try call.wait(duration) } }
    try co_delay(.seconds(1_000_000_000))
    for job in jobs {
      #expect(!job.isFinished)
      job.cancel()
      #expect(outcome { try job.join() } == "CancellationError")
    }
    #expect(worldTime == .seconds(1_000_000_000))
  }

  @Test(arguments: endless) func `a world in which only endless waits are left is in a deadlock`(duration: Duration) {
    #expect(throws: World.DeadlockError.self) { try World().run { try co_delay(duration) } }
  }

  // Dispatch and the kernel keep the time of real queues and workers, and a loop's own timer that of a host.
  @Test(.tags(.realClock)) func `endless durations wait on queues, on workers and on hosts`() async throws {
    // The last one is the longest that the runtime passes on to them.
    let now = Int64(Clock.now)
    let durations = Self.endless + [.nanoseconds(Int64.max / 2), .nanoseconds(Int64.max - now - 60_000_000_000)]
    let host = HostedScheduler(Loop())
    for launch in [
      { (body: @escaping @Sendable () throws -> Void) in co_launch(on: taggedQueue("endless"), body) },
      { (body: @escaping @Sendable () throws -> Void) in co_launch(body) },
      { (body: @escaping @Sendable () throws -> Void) in co_launch(on: host, body) },
    ] {
      let jobs = durations.flatMap { duration in
        [
          launch { try co_delay(duration) }, launch { try co_timeout(duration) { try waitForCancellation() } },
          launch { try co_select { SelectCase.onTimeout(duration) {} } },
          launch { try co_await(Promise.after(duration)) },
        ]
      }
      // Time enough for a timer that was set for a moment in the past, by mistake.
      try await launch { try co_delay(.milliseconds(10)) }.value
      for job in jobs {
        #expect(!job.isFinished)
        job.cancel()
        #expect(await asyncOutcome { try await job.uncancelled.value } == "CancellationError")
      }
    }
  }

  @Test func `a dump of an endless delay says so`() throws {
    let simulation = Simulation()
    let dump = try simulation.run {
      co_launch { try co_delay(Duration(attoseconds: .max)) }
      co_launch { try co_select { SelectCase.onTimeout(Duration(attoseconds: .max)) {} } }
      try co_yield()
      return Simulation.dump
    }
    #expect(dump.contains("never ends by itself"))
  }

  @Test(.inOneWorld, arguments: endless + finite.map(\.0))
  func `restarts within any period are counted`(period: Duration) throws {
    let supervisor = Supervisor(limit: RestartLimit(restarts: 1, within: period))
    let actor = supervisor.actor(of: Order.self) { mailbox in
      while try mailbox.receive() != nil { throw Oops() }
    }
    for _ in 0..<2 {
      try actor.tell(.finish)
      try co_delay(.seconds(20))
    }
    #expect(supervisor.restartCount == (period < .seconds(20) ? 2 : 1))
    supervisor.cancel()
    let end = outcome { try supervisor.job.join() }
    #expect(end == (period < .seconds(20) ? "CancellationError" : "RestartLimitError"))
  }

  @Test(arguments: endless + passed) func `a stall is reported after any threshold of a millisecond or more`(
    threshold: Duration
  ) async {
    await #expect(processExitsWith: .success) { [threshold] in
      CoroutineRuntime.onStall(after: threshold) { _ in }
      #expect(CoroutineRuntime.Stall.threshold == (threshold > .zero ? UInt64(threshold.nanoseconds) : 1_000_000))
      try await co_launch { try co_delay(.milliseconds(1)) }.value
    }
  }

  @Test func `without a limit co_timeout needs no coroutine`() {
    #expect(outcome { try co_timeout(nil) { 1 } } == "1")
    #expect(outcome { try co_timeout(.seconds(1)) { 1 } } == "notInCoroutine")
  }

  // MARK: Periods that trap

  @Test func `a period that is not positive traps with a sentence, whatever it is`() async {
    let limiter = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = RateLimiter(1, per: Duration(attoseconds: .min))
    }
    let limit = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = RestartLimit(within: Duration(attoseconds: .min))
    }
    let timer = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let actor = co_actor(of: Order.self) { mailbox in
        mailbox.schedule(.finish, every: Duration(attoseconds: .min))
      }
      try await actor.job.value
    }
    for (end, sentence) in [
      (limiter, "A RateLimiter cannot have a period of"), (limit, "Restarts cannot be counted within"),
      (timer, "A timer cannot go off every"),
    ] {
      let text = String(decoding: end?.standardErrorContent ?? [], as: UTF8.self)
      #expect(text.contains("\(sentence) -1.7014118346046924e+20 seconds"), "\(text)")
    }
  }

  // MARK: Rates and factors

  @Test func `a limiter of extreme numbers counts without overflow`() throws {
    for period in Self.endless + Self.finite.map(\.0) where !TimedCall.rateLimiter.refuses(period) {
      for (tokens, burst) in [(1, 1), (Int.max, 1), (1, Int.max), (Int.max, Int.max)] {
        let limiter = RateLimiter(tokens, per: period, burst: burst)
        #expect(limiter.tryAcquire(burst))
        _ = limiter.tryAcquire(burst)
      }
    }
  }

  static let factors = [0, -1, -.infinity, 0.5, 1, 1 + .ulpOfOne, 2, 1e308, .infinity, .nan, 1e-300]

  @Test(arguments: factors) func `a back-off of extreme numbers stays between zero and its limit`(factor: Double) {
    let durations = Self.endless + Self.passed + Self.finite.map(\.0)
    for first in durations {
      for limit in durations {
        let backoff = Backoff.exponential(from: first, factor: factor, limit: limit)
        let most = Duration.nanoseconds(max(0, limit.nanoseconds))
        let start = Duration.nanoseconds(max(0, first.nanoseconds))
        for attempt in [Int.min, 0, 1, 2, 3, 100, Int.max] {
          let pause = backoff.pause(after: attempt)
          #expect(pause >= .zero && pause <= most, "from \(first), limit \(limit), attempt \(attempt)")
          if attempt <= 1 { #expect(pause >= min(start, most) / 2) }
        }
        if start > .zero, factor > 1.5 || factor.isNaN { #expect(backoff.pause(after: .max) >= most / 2) }
        if factor < 0.5 { #expect(backoff.pause(after: .max) == .zero) }
      }
    }
  }

  @Test(.inOneWorld, arguments: factors) func `a retry with an extreme factor waits, and can be cancelled`(
    factor: Double
  ) throws {
    let backoff = Backoff.exponential(from: .seconds(1), factor: factor, limit: Duration(attoseconds: .max))
    let job = co_launch { try co_await(Promise<Int>.retry(attempts: 20, delay: backoff) { _ in .failure(Oops()) }) }
    try co_delay(.seconds(9_000_000_000))
    let end = factor > 100 || factor.isNaN ? "CancellationError" : "Oops()"
    #expect(job.isFinished == (end == "Oops()"))
    job.cancel()
    #expect(outcome { try job.join() } == end)
  }
}
