public import Dispatch

/// How long to wait between two attempts.
public struct Backoff: Sendable {
  private let pauses: @Sendable (Int) -> Duration

  /// Whatever `pause` says after the attempt of that number, from one on, has failed.
  public init(_ pause: @escaping @Sendable (_ failedAttempt: Int) -> Duration) { pauses = pause }

  /// Not at all.
  public static var none: Backoff { Backoff { _ in .zero } }

  /// Always as long.
  public static func constant(_ pause: Duration) -> Backoff { Backoff { _ in pause } }

  /// `first`, then each time `factor` times as long, up to `limit`; the real pause lies between half of that and all of it, so
  /// that many who failed together do not come back together.
  public static func exponential(
    from first: Duration,
    factor: Double = 2,
    limit: Duration = .seconds(30)
  ) -> Backoff {
    Backoff { attempt in
      var pause = first
      for _ in 1..<max(1, attempt) where pause < limit { pause = pause * factor }
      return min(pause, limit) * Double.random(in: 0.5...1)
    }
  }

  /// How long to wait after the attempt of this number, from one on, has failed.
  public func pause(after failedAttempt: Int) -> Duration { pauses(failedAttempt) }
}

extension Promise {
  /// Tries again: `body` makes one attempt, which it is told the number of, from one on.
  ///
  /// - Parameters:
  ///   - attempts: How many in all; less than one: none, and the promise rejects with ``InvalidCount``.
  ///   - delay: How long to wait between two attempts; not at all by default.
  ///   - shouldRetry: Whether to go on after this failure; by default after every one that is no cancellation.
  ///   - queue: Where `body` runs from the second attempt on; the first runs at once, on the caller.
  ///   - file: Where the promise is made, for reports.
  ///   - line: Where the promise is made, for reports.
  ///   - body: Makes the attempt of this number.
  ///
  /// Rejects with the last failure. Cancelling it cancels the attempt, or the wait, that is under way.
  public static func retry(
    attempts: Int,
    delay: Backoff = .none,
    while shouldRetry: @escaping @Sendable (any Error) -> Bool = { !($0 is CancellationError) },
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (_ attempt: Int) throws -> Promise
  ) -> Promise {
    guard attempts > 0 else { return .failure(InvalidCount(count: attempts), file: file, line: line) }
    let retry = Retry(
      attempts,
      delay,
      shouldRetry,
      queueOfHandlers(queue),
      Promise(file: file, line: line),
      body
    )
    retry.attempt(1)
    return retry.result
  }
}

/// The attempts of one retry, one after the other.
///
/// The result waits for one step at a time: for an attempt, by a link whose handler decides about its failure, or for a pause. A
/// step that is over without deciding yields nil, and the next one has been entered before. So what is kept does not grow with
/// the number of attempts.
private final class Retry<Success: Sendable>: Sendable {
  let result: Promise<Success>
  private let attempts: Int
  private let delay: Backoff
  private let shouldRetry: @Sendable (any Error) -> Bool
  private let queue: DispatchQueue?
  private let body: @Sendable (Int) throws -> Promise<Success>

  init(
    _ attempts: Int,
    _ delay: Backoff,
    _ shouldRetry: @escaping @Sendable (any Error) -> Bool,
    _ queue: DispatchQueue?,
    _ result: Promise<Success>,
    _ body: @escaping @Sendable (Int) throws -> Promise<Success>
  ) {
    (self.attempts, self.delay, self.shouldRetry) = (attempts, delay, shouldRetry)
    (self.queue, self.result, self.body) = (queue, result, body)
  }

  func attempt(_ number: Int) {
    let attempt = Promise<Success>.trying { () throws -> Promise<Success> in try body(number) }
    _ = result.waitBesides(for: attempt) { result, attempt in
      if let error = attempt.error { result.hold(error) }
    }
    let step = Link<any Error, Success?, Success?>({ try self.failed(number, $0) }, result.launchSite)
    step.link(to: attempt, on: queue, .failure) { promise, source, handles in
      let step = unsafeDowncast(promise, to: Link<any Error, Success?, Success?>.self)
      if handles { return step.settle(byHandlerOf: step.failureForHandler()) }
      _ = step.succeed(source.unsafelyUnwrapped.completion.value(as: Success.self), fromOutside: false)
    }
    wait(for: step)
  }

  private func failed(_ number: Int, _ error: any Error) throws -> Success? {
    guard result.isPending, number < attempts, shouldRetry(error) else { throw error }
    let pause = delay.pause(after: number)
    result.hold(nil)
    if pause > .zero {
      wait(for: Promise<Void>.after(pause).then(on: queue) { () throws -> Success? in self.next(number + 1) })
      return nil
    }
    return next(number + 1)
  }

  private func next(_ number: Int) -> Success? {
    if result.isPending { attempt(number) }
    return nil
  }

  private func wait(for step: Promise<Success?>) {
    // Its failure becomes the result's, or comes too late.
    step.ignore()
    let isWaiting = result.waitBesides(for: step) { result, step in
      let result = unsafeDowncast(result, to: Promise<Success>.self)
      if let error = step.error {
        _ = result.fail(error)
        return
      }
      if let value = step.completion.value(as: Success?.self) { _ = result.succeed(value, fromOutside: false) }
    }
    if !isWaiting { result.letGo(of: step) }
  }
}

/// A count that must be at least one was not.
public struct InvalidCount: Error, CustomStringConvertible {
  /// What was given.
  public var count: Int
  /// Creates the error.
  public init(count: Int) { self.count = count }
  /// One sentence.
  public var description: String { "the count is \(count), and must be at least one" }
}
