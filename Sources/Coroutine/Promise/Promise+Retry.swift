public import Dispatch

extension Promise {
  /// Calls `body` until its promise is fulfilled or the attempts are used up, and returns a promise for the value.
  ///
  /// - Parameters:
  ///   - attempts: The number of attempts in all. If it is less than one, `body` never runs, and the promise rejects
  ///     with ``CoroutineError/invalidCount(_:)``.
  ///   - delay: The pauses between attempts. The default is no pause.
  ///   - shouldRetry: Whether to try again after this failure. The default is true for every failure but a
  ///     cancellation.
  ///   - queue: The queue on which `body` runs from the second attempt on, in a coroutine. Without a queue, that of the
  ///     calling coroutine or handler. The first attempt runs at once, on the caller.
  ///   - file: The launch site of the promise, for reports.
  ///   - line: The launch site of the promise, for reports.
  ///   - body: Makes an attempt. It gets the number of the attempt, from one on.
  ///
  /// The promise rejects with the last failure. Cancelling it cancels the current attempt or pause. A cycle of promises
  /// that leads through an attempt is not found: an attempt that waits for the promise of the retry waits for ever. A
  /// dump shows the coroutine.
  public static func retry(
    attempts: Int,
    delay: Backoff = .none,
    while shouldRetry: @escaping @Sendable (any Error) -> Bool = { !($0 is CancellationError) },
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (_ attempt: Int) throws -> Promise
  ) -> Promise {
    guard attempts > 0 else { return .failure(CoroutineError.invalidCount(attempts), file: file, line: line) }
    let result = Promise(file: file, line: line)
    let run = Run(result)
    let first = run.step(of: Promise.trying { () throws -> Promise in try body(1) })
    if first.isFulfilled { return first }
    run.start(result, on: queue, name: "Promise.retry") {
      var (number, attempt) = (1, first)
      while true {
        do { return try co_await(attempt) } catch {
          guard number < attempts, run.mayGoOn(result), !co_isCancelled, shouldRetry(error) else { throw error }
        }
        let pause = delay.pause(after: number)
        if pause > .zero { try co_await(run.step(of: Promise<Void>.after(pause))) }
        if !run.mayGoOn(result) { throw CancellationError() }
        number += 1
        let next = number
        attempt = run.step(of: Promise.trying { () throws -> Promise in try body(next) })
      }
    }
    return result
  }
}
