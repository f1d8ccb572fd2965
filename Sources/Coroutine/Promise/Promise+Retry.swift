public import Dispatch

extension Promise {
  /// Calls `body` until its promise is fulfilled or the attempts are used up, and returns a promise for the value.
  ///
  /// - Parameters:
  ///   - attempts: The number of attempts in all. If it is less than one, `body` never runs, and the promise rejects
  ///     with ``InvalidCount``.
  ///   - delay: The pauses between attempts. The default is no pause.
  ///   - shouldRetry: Whether to try again after this failure. The default is true for every failure but a
  ///     cancellation.
  ///   - queue: The queue on which `body` runs from the second attempt on. The first attempt runs at once, on the
  ///     caller.
  ///   - file: The launch site of the promise, for reports.
  ///   - line: The launch site of the promise, for reports.
  ///   - body: Makes an attempt. It gets the number of the attempt, from one on.
  ///
  /// The promise rejects with the last failure. Cancelling it cancels the current attempt or pause.
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
/// The result waits for one step at a time: an attempt, through a link whose handler decides about a failure, or a
/// pause. A step that decides nothing yields nil; at that time the result already waits for the next step. So the
/// memory in use does not grow with the number of attempts.
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
    _ = result.waitAdditionally(for: attempt) { result, attempt in
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
    // The step's failure becomes the result's, or comes too late.
    step.ignore()
    let isWaiting = result.waitAdditionally(for: step) { result, step in
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

/// The error of a count that must be at least one and is not.
public struct InvalidCount: Error, CustomStringConvertible {
  /// The count that was given.
  public var count: Int
  /// Creates the error.
  public init(count: Int) { self.count = count }
  /// A sentence that describes the error.
  public var description: String { "the count is \(count), and must be at least one" }
}
