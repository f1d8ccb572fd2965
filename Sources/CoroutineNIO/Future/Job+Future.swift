#if NIO
public import Coroutine
public import NIOCore

extension Job {
  /// Returns a future of `loop` that gets the job's result.
  ///
  /// Any thread; does not suspend. Starts a lazy job. If the job is cancelled, the future fails with the job's error.
  /// If the loop is shut down first, the future fails with `EventLoopError.shutdown`, and the job is not affected. A
  /// failure counts as observed.
  ///
  /// A coroutine of the loop waits for the job and fulfills the promise, so the future's callbacks run there.
  public func future(on loop: any EventLoop) -> EventLoopFuture<Success> {
    let promise = loop.makePromise(of: Success.self)
    promise.completeWithCoroutine(name: "future of a job") { try co_await(self) }
    return promise.futureResult
  }
}

extension EventLoopPromise where Value: Sendable {
  /// Launches a coroutine on the promise's event loop, and fulfills the promise with its result.
  ///
  /// Any thread; does not suspend. Cancelling the job fails the promise with the job's error, and so does the shutdown
  /// of the loop, with `EventLoopError.shutdown`. A failure counts as observed. NIO cannot fulfill a promise of a loop
  /// that is shut down already: its future then stays as it is.
  @discardableResult
  public func completeWithCoroutine(
    name: String? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Value
  ) -> Job<Value> {
    let job = futureResult.eventLoop.co_launch(name: name, file: file, line: line) {
      let result = Result { try body() }
      // In the body, because it runs on the loop for certain. NIO drops what comes from elsewhere after a shutdown.
      self.completeWith(result)
      return try result.get()
    }
    // The body never runs if the job is cancelled before. NIO ignores a second result.
    _ = job.observe { if case .failure(let error) = $0 { self.fail(error) } }
    return job
  }
}
#endif
