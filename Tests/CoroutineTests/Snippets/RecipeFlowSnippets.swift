import Coroutine
import CoroutineTesting
import Synchronization
import Testing

// The code of the recipes in Sources/Coroutine/Coroutine.docc/Recipes, run in worlds. This file: flows of work.

// MARK: PubSub.md

/// Passes each message to all subscribers; a slow one loses its oldest messages.
final class Topic<Message: Sendable>: Sendable {
  private let subscribers = ThreadMutex<[(number: Int, channel: Channel<Message>)]>([])
  private let numbers = Atomic(0)

  func publish(_ message: Message) {
    for (_, channel) in subscribers.withLock({ $0 }) { _ = channel.trySend(message) }
  }

  /// Calls `handle` with each message, until `handle` throws or the coroutine is cancelled.
  func subscribe(_ handle: (Message) throws -> Void) throws {
    let number = numbers.add(1, ordering: .relaxed).newValue
    let channel = Channel<Message>(.dropOldest(100))
    subscribers.withLock { $0.append((number, channel)) }
    defer { subscribers.withLock { $0.removeAll { $0.number == number } } }
    try channel.forEach(handle)
  }
}

// MARK: WorkerPool.md

/// Runs `work` for everything that comes through `jobs`, in four coroutines, until the channel is closed.
func runWorkers(_ jobs: Channel<Int>, _ work: @escaping @Sendable (Int) throws -> Void) throws {
  try co_scope(failures: .isolated) { scope in
    for number in 1...4 {
      scope.launch(name: "worker \(number)") {
        try jobs.forEach { job in
          do {
            try work(job)
          } catch {
            try co_checkCancelled()  // the failure of one job ends neither the worker nor the others
            print("job \(job) failed: \(error)")
          }
        }
      }
    }
  }
}

// MARK: PeriodicJob.md

/// Calls `work` once a minute until the program stops; ticks that it was too slow for count as one.
func everyMinute(_ work: (_ missed: Int) throws -> Void) throws {
  let ticker = co_ticker(every: .seconds(60))
  while !co_isStopping {
    let ticks = try co_select {
      ticker.onTick { $0 }
      co_stopping.onAwait { _ in 0 }
    }
    if ticks > 0 { try work(ticks - 1) }
  }
}

// MARK: GracefulShutdown.md

/// Takes orders until the program stops, then finishes those that it has taken.
func takeOrders(_ orders: Channel<Int>, _ work: @escaping @Sendable (Int) throws -> Void) throws {
  try co_scope { scope in
    while !co_isStopping {
      let order: Int? = try co_select(biased: true) {
        co_stopping.onAwait { _ in nil }
        orders.onReceive { $0 }
      }
      guard let order else { break }
      scope.launch(name: "order \(order)") { try work(order) }
    }
  }
}

// MARK: TimeoutsAsBudgets.md

/// Asks two services in turn, within one budget: what is left goes to the second.
func checkout(_ ask: (String) throws -> Int) throws -> Int {
  try co_timeout(.seconds(2)) {
    let price = try ask("prices")
    // Not worth an attempt if less than 100 ms are left.
    let hasTime = (co_timeLeft ?? .seconds(1)) > .milliseconds(100)
    let discount = try hasTime ? co_timeout(.milliseconds(500)) { try ask("discounts") } : 0
    return price - discount
  }
}

// MARK: ProgressOfLongWork.md

/// Imports lines, and tells how far it is.
func importLines(_ lines: [String], _ store: @escaping @Sendable (String) throws -> Void) -> ProgressPromise<Int> {
  let progress = ProgressPromise<Int>()
  co_launch(name: "import") {
    do {
      for (index, line) in lines.enumerated() {
        try store(line)
        progress.update(completed: index + 1, total: lines.count)
      }
      progress.fulfill(lines.count)
    } catch {
      progress.reject(error)
    }
  }
  return progress
}

@Suite("What the recipes about flows show", .inWorlds, .timeLimit(.minutes(5)))
struct RecipeFlowSnippets {
  struct Failure: Error {}

  @Test func `a topic reaches all subscribers`() throws {
    let topic = Topic<Int>()
    try co_scope { scope in
      let seen = Locked<[Int]>([])
      for _ in 1...2 { scope.launch { try topic.subscribe { message in seen.withLock { $0.append(message) } } } }
      try settleWorld()
      topic.publish(1)
      try settleWorld()
      #expect(seen.withLock { $0 } == [1, 1])
      scope.cancel()
    }
  }

  @Test func `four workers do all jobs, and survive a failure`() throws {
    let jobs = Channel<Int>(10)
    let sum = Locked(0)
    for job in 1...10 { try jobs.send(job) }
    jobs.close()
    try runWorkers(jobs) { job in
      try co_delay(.milliseconds(job))
      if job == 3 { throw Failure() }
      sum.withLock { $0 += job }
    }
    #expect(sum.withLock { $0 } == 52)
  }

  @Test func `a periodic job runs three times in three minutes, then stops`() throws {
    let runs = Locked(0)
    try co_scope { scope in
      scope.launch { try everyMinute { _ in runs.withLock { $0 += 1 } } }
      try co_delay(.seconds(190))
      scope.stop(within: .seconds(1))
    }
    #expect(runs.withLock { $0 } == 3)
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

  @Test func `a budget leaves out what there is no time for`() throws {
    let total = try checkout { service in
      try co_delay(service == "prices" ? .milliseconds(1_950) : .milliseconds(10))
      return service == "prices" ? 100 : 10
    }
    #expect(total == 100)
    #expect(throws: TimeoutError.self) {
      try checkout { _ in
        try co_delay(.seconds(3))
        return 1
      }
    }
  }

  @Test func `an import tells its progress`() throws {
    let work = importLines(["a", "b"]) { _ in try co_delay(.milliseconds(10)) }
    let count = try co_await(work)
    #expect(count == 2 && work.progress == ProgressUpdate(completed: 2, total: 2))
  }
}
