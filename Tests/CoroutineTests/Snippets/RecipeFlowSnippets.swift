import Coroutine

// The code of the recipes in Sources/Coroutine/Coroutine.docc/Recipes. This file: flows of work.
// RecipeFlowTests.swift runs it in worlds.

// MARK: PubSub.md

/// Passes each message to all subscribers; a slow one is told how many messages it has missed.
final class Topic<Message: Sendable>: Sendable {
  private let messages = Broadcast<Message>(100)

  /// Returns the number of subscribers.
  @discardableResult
  func publish(_ message: Message) throws -> Int { try messages.send(message) }

  /// Calls `handle` with each message, until `handle` throws or the coroutine is cancelled.
  func subscribe(missed: (Int) throws -> Void = { _ in }, _ handle: (Message) throws -> Void) throws {
    let subscription = messages.subscribe()
    while true {
      do {
        guard let message = try subscription.receive() else { return }
        try handle(message)
      } catch let error as SubscriptionLaggedError {
        try missed(error.missed)
      }
    }
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

/// Asks both services at once; the children see the time that is left as a value.
func checkoutAtOnce(_ ask: @escaping @Sendable (String, Duration) throws -> Int) throws -> Int {
  try co_timeout(.seconds(2)) {
    let left = co_timeLeft ?? .seconds(2)
    return try co_scope { scope in
      let price = scope.launch { try ask("prices", left) }
      let discount = scope.launch { try ask("discounts", left) }
      return try price.join() - discount.join()
    }
  }
}

/// Runs `body`, and gives it up when it has shown no sign of life for the time of `patience`.
func withPatience<Output: Sendable>(
  _ patience: Duration,
  _ body: @escaping @Sendable (_ signs: Watch<Int>) throws -> Output
) throws -> Output {
  try co_scope { scope in
    let signs = Watch(0)
    let changes = signs.subscribe()
    let job = scope.launch { try body(signs) }
    var isRunning = true
    while isRunning {
      isRunning = try co_select {
        job.onAwait { _ in false }
        changes.onReceive { _ in true }
        SelectCase.onTimeout(patience) { throw TimeoutError(after: patience) }
      }
    }
    return try job.join()
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
