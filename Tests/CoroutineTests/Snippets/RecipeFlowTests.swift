import Coroutine
import CoroutineTesting
import Testing

// What RecipeFlowSnippets.swift promises. Each test fails if its recipe loses a part: a limit, a stop, a failure.

@Suite("What the recipes about flows show", .inWorlds, .timeLimit(.minutes(10)))
struct RecipeFlowTests {
  struct Failure: Error {}
  private final class Message: Sendable {}

  @Test func `a topic reaches all subscribers`() throws {
    let topic = Topic<Int>()
    try co_scope { scope in
      let seen = Locked<[Int]>([])
      for _ in 1...2 { scope.launch { try topic.subscribe { message in seen.withLock { $0.append(message) } } } }
      try settleWorld()
      #expect(try topic.publish(1) == 2)
      try settleWorld()
      #expect(seen.withLock { $0 } == [1, 1])
      scope.cancel()
    }
  }

  @Test func `a slow subscriber loses its oldest messages, and is told how many`() throws {
    let topic = Topic<Int>()
    let (seen, missed) = (Locked<[Int]>([]), Locked(0))
    let subscriber = co_launch {
      try topic.subscribe(missed: { count in missed.withLock { $0 += count } }) { message in
        seen.withLock { $0.append(message) }
        if message == 0 { try co_delay(.seconds(1)) }
      }
    }
    try settleWorld()
    try topic.publish(0)
    try settleWorld()
    for message in 1...150 { try topic.publish(message) }
    try co_delay(.seconds(2))
    #expect(seen.withLock { $0 } == [0] + Array(51...150) && missed.withLock { $0 } == 50)
    subscriber.cancel()
    _ = try? subscriber.join()
  }

  @Test func `a topic forgets a subscriber that has ended`() throws {
    let topic = Topic<Message>()
    let subscriber = co_launch { try topic.subscribe { _ in } }
    try settleWorld()
    subscriber.cancel()
    _ = try? subscriber.join()
    weak var published: Message?
    do {
      let message = Message()
      published = message
      #expect(try topic.publish(message) == 0)
    }
    #expect(published == nil)
  }

  @Test func `signs of life extend a limit, and work without them is given up`() throws {
    let began = co_now
    let done = try withPatience(.seconds(2)) { signs in
      for _ in 0..<10 {
        try co_delay(.seconds(1))
        try signs.update { $0 += 1 }
      }
      return 7
    }
    #expect(done == 7 && co_now - began == .seconds(10))
    let cleaned = Locked(false)
    #expect(throws: TimeoutError.self) {
      try withPatience(.seconds(2)) { signs in
        defer { cleaned.withLock { $0 = true } }
        try signs.update { $0 += 1 }
        try co_delay(.seconds(60))
      }
    }
    #expect(cleaned.withLock { $0 } && co_now - began == .seconds(12))
    #expect(throws: Failure.self) { try withPatience(.seconds(2)) { _ in throw Failure() } }
  }

  @Test func `four workers do all jobs, and survive failures`() throws {
    let jobs = Channel<Int>(20)
    let sum = Locked(0)
    for job in 1...20 { try jobs.send(job) }
    jobs.close()
    let began = co_now
    try runWorkers(jobs) { job in
      try co_delay(.seconds(1))
      if job <= 4 { throw Failure() }
      sum.withLock { $0 += job }
    }
    #expect(sum.withLock { $0 } == 200)
    #expect(co_now - began == .seconds(5))
  }

  @Test func `workers end when they are cancelled, and take no other job`() throws {
    let jobs = Channel<Int>(20)
    for job in 1...20 { try jobs.send(job) }
    let pool = co_launch { try runWorkers(jobs) { _ in try co_delay(.seconds(1)) } }
    try settleWorld()
    pool.cancel()
    #expect(throws: CancellationError.self) { try pool.join() }
    #expect(jobs.count == 16)
  }

  @Test func `a periodic job runs three times in three minutes, then stops`() throws {
    let runs = Locked(0)
    let hasEnded = Locked(false)
    try co_scope { scope in
      scope.launch {
        try everyMinute { missed in
          #expect(missed == 0)
          runs.withLock { $0 += 1 }
          try co_delay(.seconds(5))
        }
        // Not cancelled: the stop itself has ended it.
        hasEnded.withLock { $0 = true }
      }
      try co_delay(.seconds(190))
      scope.stop(within: .seconds(1))
    }
    #expect(runs.withLock { $0 } == 3 && hasEnded.withLock { $0 })
  }

  @Test func `a periodic job that is too slow is told what it has missed, and comes back into step`() throws {
    let began = co_now
    let calls = Locked<[Int]>([])
    let times = Locked<[Duration]>([])
    try co_scope { scope in
      scope.launch {
        try everyMinute { missed in
          let number = calls.withLock { calls in
            calls.append(missed)
            return calls.count
          }
          times.withLock { $0.append(co_now - began) }
          if number == 1 { try co_delay(.seconds(130)) }
        }
      }
      try co_delay(.seconds(245))
      scope.stop(within: .seconds(1))
    }
    #expect(calls.withLock { $0 } == [0, 1, 0])
    #expect(times.withLock { $0 } == [.seconds(60), .seconds(190), .seconds(240)])
  }

  @Test func `a stop finishes the orders that were taken`() throws {
    let orders = Channel<Int>(10)
    let done = Locked<[Int]>([])
    try co_scope { scope in
      scope.launch {
        try takeOrders(orders) { order in
          try co_delay(.seconds(1))
          done.withLock { $0.append(order) }
        }
      }
      try orders.send(1)
      try settleWorld()
      scope.stop(within: .seconds(10))
      try settleWorld()
      try orders.send(2)
    }
    #expect(done.withLock { $0 } == [1] && orders.count == 1)
  }

  @Test func `children get what is left of a budget as a value, and are cancelled at its end`() throws {
    let price = try checkoutAtOnce { name, left in
      #expect(left == .seconds(2) && co_timeLeft == nil)
      return name == "prices" ? 10 : 3
    }
    #expect(price == 7)
    #expect(throws: TimeoutError.self) {
      try checkoutAtOnce { _, _ in
        try co_delay(.seconds(60))
        return 0
      }
    }
  }

  @Test func `a budget leaves out what there is no time for, and limits the rest`() throws {
    let began = co_now
    /// Asks two services that take so long.
    func total(prices: Duration, discounts: Duration) throws -> Int {
      try checkout { service in
        try co_delay(service == "prices" ? prices : discounts)
        return service == "prices" ? 100 : 10
      }
    }
    let full = try total(prices: .seconds(1), discounts: .milliseconds(10))
    #expect(full == 90)
    let short = try total(prices: .milliseconds(1_950), discounts: .milliseconds(10))
    #expect(short == 100)
    #expect(co_now - began == .milliseconds(2_960))
    #expect(throws: TimeoutError.self) { try total(prices: .seconds(3), discounts: .milliseconds(10)) }
    #expect(co_now - began == .milliseconds(4_960))
    #expect(throws: TimeoutError.self) { try total(prices: .milliseconds(100), discounts: .seconds(1)) }
    #expect(co_now - began == .milliseconds(5_560))
  }

  @Test func `an import tells its progress, and its failure`() throws {
    let work = importLines(["a", "b"]) { _ in try co_delay(.milliseconds(10)) }
    try co_delay(.milliseconds(15))
    #expect(work.progress == ProgressUpdate(completed: 1, total: 2))
    let count = try co_await(work)
    #expect(count == 2 && work.progress == ProgressUpdate(completed: 2, total: 2))
    let failing = importLines(["a"]) { _ in throw Failure() }
    #expect(throws: Failure.self) { try co_await(failing) }
  }
}
