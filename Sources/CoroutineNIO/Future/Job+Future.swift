#if NIO
public import Coroutine
public import NIOCore

extension Job {
  /// Returns a future of `loop` that gets the job's result.
  ///
  /// Any thread; does not suspend. Starts a lazy job. If the job is cancelled, the future fails with the job's error.
  /// If the loop is shut down first, the future fails with `EventLoopError.shutdown`, and the job is not affected. If
  /// it was shut down before the call, NIO can complete no future of it: the future stays pending, and in memory. A
  /// failure counts as observed.
  ///
  /// A coroutine of the loop waits for the job and fulfills the promise, so the future's callbacks run there.
  public func future(on loop: any EventLoop) -> EventLoopFuture<Success> {
    let promise = loop.makePromise(of: Success.self)
    promise.completeWithCoroutine(name: "future of a job") { try co_await(self) }
    return promise.futureResult
  }
}
#endif
