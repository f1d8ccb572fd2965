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
    let queue = queueOfHandlers(queue)
    @Sendable func attempt(_ number: Int) -> Promise {
      let this = Promise.trying(file: file, line: line) { () throws -> Promise in try body(number) }
      return this.recover(on: queue, file: file, line: line) { error throws -> Promise in
        guard number < attempts, shouldRetry(error) else { throw error }
        let pause = delay.pause(after: number)
        guard pause > .zero else { return attempt(number + 1) }
        return Promise<Void>.after(pause, file: file, line: line)
          .then(on: queue, file: file, line: line) { () throws -> Promise in attempt(number + 1) }
      }
    }
    return attempt(1)
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
