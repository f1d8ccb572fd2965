import Dispatch

// Bounded concurrency: many promises, of which at most `limit` are pending at once.
//
// - The run takes the next element only while fewer than `limit` promises are pending. It takes none after the first
//   failure.
// - One thread at a time takes an element and calls `body`, outside the lock. `isPulling` is true while a thread does
//   so.
// - When a promise settles, it posts a handler, which takes the next elements. So a promise that is already settled
//   costs one work item on the queue, and no stack.
//
// The result waits for two promises of each element:
// - for the promise itself. So the call that rejects the promise also delivers the failure, and a cycle is found;
// - for the link that has the handler. So cancelling the result cancels the work. After a failure, the link is
//   cancelled alone: the promise is left running, and keeps nothing of the run.

final class BoundedRun<Success: Sendable, Output: Sendable>: @unchecked Sendable {
  // Sound because everything mutable is under `lock`, except what `start` holds: only the thread that set `isPulling`
  // uses it.
  private let lock = ThreadLock()
  /// Takes an element and starts its work.
  ///
  /// Returns nil if there is no further element.
  private let start: () throws -> Promise<Success>?
  private let result: Promise<[Output]>
  private let limit: Int
  /// Whether the first failure ends the run.
  private let failsFast: Bool
  private let queue: DispatchQueue?
  private let convert: (Result<Success, any Error>) throws -> Output
  private var outputs: [Output?] = []
  private var inFlight = 0
  private var isPulling = false
  private var isExhausted = false
  private var isOver = false
  /// The failure that came while an element was being taken.
  ///
  /// The result is rejected when the element has been taken, and no further element is taken.
  private var failure: (any Error)?

  init(
    _ limit: Int,
    _ queue: DispatchQueue?,
    _ result: Promise<[Output]>,
    failsFast: Bool,
    _ start: @escaping () throws -> Promise<Success>?,
    _ convert: @escaping (Result<Success, any Error>) throws -> Output
  ) {
    (self.limit, self.queue, self.result, self.start, self.convert) = (limit, queue, result, start, convert)
    self.failsFast = failsFast
  }

  /// Takes elements while `limit` allows, and starts their work.
  func pull() {
    while reserve() {
      let promise: Promise<Success>
      do {
        guard let started = try start() else {
          finish { isExhausted = true }
          continue
        }
        promise = started
      } catch {
        promise = .failure(error)
      }
      let index = lock.withLock {
        outputs.append(nil)
        return outputs.count - 1
      }
      wait(for: promise, index)
      lock.lock()
      isPulling = false
      let failure = self.failure.take()
      lock.unlock()
      if let failure { result.fail(failure) }
    }
    settleIfDone()
  }

  private func wait(for promise: Promise<Success>, _ index: Int) {
    _ = result.waitAdditionally(for: promise) { [self] _, promise in
      if failsFast, let error = promise.error { fail(error) }
    }
    let link = promise.tap(on: queue) { self.settled(index, $0) }
    link.ignore()
    if !result.waitAdditionally(for: link, isStep: true, { _, _ in }) { result.letGo(of: link) }
  }

  private func reserve() -> Bool {
    let isPending = result.isPending
    return lock.withLock {
      guard isPending, !isPulling, !isExhausted, !isOver, inFlight < limit else { return false }
      isPulling = true
      inFlight += 1
      return true
    }
  }

  /// Gives a reservation back.
  private func finish(_ change: () -> Void) {
    let failure = lock.withLock {
      change()
      isPulling = false
      inFlight -= 1
      return self.failure.take()
    }
    if let failure { result.fail(failure) }
  }

  private func settled(_ index: Int, _ outcome: Result<Success, any Error>) {
    do {
      let output = try convert(outcome)
      lock.withLock {
        outputs[index] = output
        inFlight -= 1
      }
      pull()
    } catch {
      fail(error)
    }
  }

  /// Records a failure.
  ///
  /// It is called within the call that rejects the promise, so that no element is taken from then on. The handler calls
  /// it once more.
  private func fail(_ error: any Error) {
    let isFirst = lock.withLock {
      defer { isOver = true }
      if isPulling, !isOver { failure = error }
      return !isPulling && !isOver
    }
    if isFirst { result.fail(error) }
  }

  private func settleIfDone() {
    lock.lock()
    let isDone = isExhausted && !isOver && inFlight == 0
    if isDone { isOver = true }
    let outputs = isDone ? outputs : []
    lock.unlock()
    if isDone { result.settle(.success(outputs.map { $0.unsafelyUnwrapped })) }
  }
}
