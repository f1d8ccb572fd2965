import Dispatch

// Many pieces of work, a few at a time.
//
// The pump takes the next element only when fewer than `limit` promises are pending, so never more than that are in flight, and
// nothing is taken after the first failure. Elements are taken, and `body` is called, by one thread at a time, outside of the
// lock: `isPulling` says that somebody does. A promise that settles posts a handler, which pulls: so work that is settled
// already costs a turn of the queue and no stack.
//
// The result waits for each promise, so that a failure is known in the call that rejects it and a circle is found, and for the
// link that has the handler, so that what cancels the result cancels the work.

final class BoundedRun<Success: Sendable, Output: Sendable>: @unchecked Sendable {
  // Sound because everything mutable is under `lock`, except for what `start` holds: whoever set `isPulling` uses it.
  private let lock = SpinLock()
  /// Takes an element and starts its work; nil: there is none.
  private let start: () throws -> Promise<Success>?
  private let result: Promise<[Output]>
  private let limit: Int
  /// Whether the first failure ends it.
  private let failsFast: Bool
  private let queue: DispatchQueue?
  private let convert: (Result<Success, any Error>) throws -> Output
  private var outputs: [Output?] = []
  private var inFlight = 0
  private var isPulling = false
  private var isExhausted = false
  private var isOver = false
  /// It failed while an element was being taken: the result is rejected when that is done, and nothing is taken afterwards.
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

  /// Starts as many as may be started.
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
    _ = result.waitBesides(for: promise) { [self] _, promise in
      if failsFast, let error = promise.error { fail(error) }
    }
    let link = promise.tap(on: queue) { self.settled(index, $0) }
    link.ignore()
    if !result.waitBesides(for: link, { _, _ in }) { result.letGo(of: link) }
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

  /// Called in the call that rejects, so that nothing is taken from then on; and once more by the handler.
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
