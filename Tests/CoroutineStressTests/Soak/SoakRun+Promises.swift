import Coroutine

extension SoakRun {
  static func settle(_ promise: Promise<Int>, _ how: SoakSettlement) {
    switch how {
    case .fulfill: promise.fulfill(1)
    case .reject: promise.reject(SoakCause())
    case .cancel: promise.cancel()
    }
  }

  func awaitPromise(_ promise: Promise<Int>) throws {
    try wait("co_await of a promise", isPlain: false, until: promise.isSettled) { try co_await(promise) }
  }

  /// Each handler runs once, also when the coroutine that awaits the end is cancelled.
  func chain(_ index: Int) throws {
    let (world, source) = (self.world, world.promises[index])
    world.handlers.change()
    let end = source.then { $0 + 1 }.recover { _ in 2 }.ensure { world.handlers.change(by: -1) }
    let value = try wait("co_await of a chain", isPlain: false, until: end.isSettled) { try co_await(end) }
    world.findings.expect(value == 2, "a chain gave \(value)")
  }

  func combine(_ how: SoakCombination, _ indices: [Int]) throws {
    let promises = indices.map { world.promises[$0] }
    switch how {
    case .all:
      let all = Promise.all(promises)
      try wait("Promise.all", isPlain: false, until: all.isSettled) { _ = try co_await(all) }
    case .allSettled:
      let all = Promise.allSettled(promises)
      let results = try wait("Promise.allSettled", isPlain: false, until: all.isSettled) { try co_await(all) }
      world.findings.expect(results.count == promises.count, "allSettled has lost a result")
    case .any: try awaitPromise(Promise.any(promises))
    case .race: try awaitPromise(Promise.race(promises))
    }
  }

  func retry(_ attempts: Int) throws {
    let tried = Census()
    let promise = Promise<Int>.retry(attempts: attempts) { attempt in
      tried.change()
      return attempt < attempts ? .failure(SoakCause()) : .value(attempt)
    }
    let value = try outside("Promise.retry", isPlain: false) { try co_await(promise) }
    world.findings.expect(value == attempts && tried.now == attempts, "retry made \(tried.now) of \(attempts) attempts")
  }
}
