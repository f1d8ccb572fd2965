#if NIO
public import Coroutine
import NIOConcurrencyHelpers
public import NIOCore

extension EventLoopPromise where Value: Sendable {
  /// Launches a coroutine on the promise's event loop, and fulfills the promise with its result.
  ///
  /// Any thread; does not suspend. If the job is cancelled, the promise fails with the job's error. If the loop is shut
  /// down, it fails with `EventLoopError.shutdown`. A failure counts as observed. If the loop was shut down before the
  /// call, NIO cannot fulfill the promise: its future stays pending, and in memory.
  @discardableResult
  public func completeWithCoroutine(
    name: String? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Value
  ) -> Job<Value> {
    let job = co_launch(on: futureResult.eventLoop, name: name, file: file, line: line) {
      let result = Result { try body() }
      // In the body, because the body runs on the loop. After a shutdown, NIO drops results from other threads.
      self.completeWith(result)
      return try result.get()
    }
    // The body never runs if the job is cancelled before. NIO ignores a second result.
    _ = job.observe {
      guard case .failure(let error) = $0 else { return }
      if error as? EventLoopError == .shutdown { PendingFutures.keep(futureResult) }
      self.fail(error)
    }
    return job
  }
}

/// The futures of loops that were shut down before a coroutine could fulfill them.
///
/// In a debug build, NIO ends the process when a future is released that has no result.
private enum PendingFutures {
  private static let futures = NIOLockedValueBox<[any Sendable]>([])

  /// Keeps `future`, unless its loop lives: the call then comes from there.
  static func keep(_ future: EventLoopFuture<some Sendable>) {
    if !future.eventLoop.inEventLoop { futures.withLockedValue { $0.append(future) } }
  }
}
#endif
