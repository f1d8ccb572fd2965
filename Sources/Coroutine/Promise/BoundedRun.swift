// Bounded concurrency: a run (Run.swift) with a step for each element, of which at most `limit` are pending at once.
//
// - One thread at a time takes elements and calls the body: first the caller of `all(of:concurrently:)`, then the
//   coroutine. It takes an element only while fewer than `limit` steps are pending, and none once the run is over.
// - A step has an index among the steps of the run. When it settles, its callback adds the index to `ended`, and wakes
//   the coroutine. The coroutine stores the output, and the index is free for the next element.
// - The callback of a step that fails rejects the result, if the first failure ends the run. So the call that rejects a
//   promise also rejects the result, and no element is taken from then on.

final class BoundedRun<Success: Sendable, Output: Sendable>: Run, @unchecked Sendable {
  // Sound because `ended` and `change` are under `lock`. The other variables belong to the thread that takes elements.
  /// Makes the promise of the next element, or returns nil if there is none.
  private let next: () throws -> Promise<Success>?
  private let convert: (Result<Success, any Error>) throws -> Output
  private let result: Promise<[Output]>
  private let limit: Int
  /// Whether the first failure ends the run.
  private let failsFast: Bool
  /// The step with each index, and the position of its output.
  @exclusivity(unchecked) private var taken: [(step: Promise<Success>, position: Int)?] = []
  @exclusivity(unchecked) private var free: [Int] = []
  @exclusivity(unchecked) private var outputs: [Output?] = []
  @exclusivity(unchecked) private var isExhausted = false
  /// The indices of steps that have settled, in this order.
  @exclusivity(unchecked) private var ended: [Int] = []
  /// What the coroutine waits for.
  @exclusivity(unchecked) private var change: Promise<Void>?

  init(
    _ limit: Int,
    _ result: Promise<[Output]>,
    failsFast: Bool,
    _ next: @escaping () throws -> Promise<Success>?,
    _ convert: @escaping (Result<Success, any Error>) throws -> Output
  ) {
    (self.limit, self.result, self.next, self.convert, self.failsFast) = (limit, result, next, convert, failsFast)
    super.init(result)
  }

  /// The outputs, if there is neither a pending step nor another element.
  var finished: [Output]? {
    isExhausted && free.count == taken.count ? outputs.map { $0.unsafelyUnwrapped } : nil
  }

  /// Takes elements while there is room for their promises.
  func take() {
    while !isExhausted, taken.count - free.count < limit, mayGoOn(result) {
      let made: Promise<Success>
      do {
        guard let promise = try next() else {
          isExhausted = true
          return
        }
        made = promise
      } catch {
        made = .failure(error)
      }
      let index = free.popLast() ?? taken.count
      if index == taken.count { taken.append(nil) }
      let step = step(of: made, at: index)
      taken[index] = (step, outputs.count)
      outputs.append(nil)
      // Sound because the step calls it while the step is in use.
      let callback = ClosureCallback { [self, unowned(unsafe) step] in hasEnded(step, index) }
      if !step.link(callback) { hasEnded(step, index) }
    }
  }

  private func hasEnded(_ step: Promise<Success>, _ index: Int) {
    if failsFast, let error = step.error { result.fail(error) }
    let change = lock.withLock {
      ended.append(index)
      return self.change.take()
    }
    change?.fulfill()
  }

  /// Runs to the end, in the coroutine.
  func collect() throws -> [Output] {
    while true {
      for index in try nextEnded() {
        let (step, position) = taken[index].take().unsafelyUnwrapped
        // It does not suspend, but for other coroutines that are ready.
        let outcome = Result { try co_await(step) }
        try co_checkCancelled()
        outputs[position] = try convert(outcome)
        free.append(index)
        take()
        if !mayGoOn(result) { throw CancellationError() }
        if let finished { return finished }
      }
    }
  }

  /// Suspends until a step has settled, and returns the indices of those that have.
  private func nextEnded() throws -> [Int] {
    while true {
      let change = Promise<Void>()
      let ended = lock.withLock {
        let ended = self.ended
        self.ended = []
        if ended.isEmpty { self.change = change }
        return ended
      }
      if !ended.isEmpty { return ended }
      try co_await(change)
    }
  }
}
