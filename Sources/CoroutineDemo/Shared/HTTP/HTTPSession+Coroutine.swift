#if Demo
import Coroutine
import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

extension HTTPSession {
  /// Sends `request` and returns the body of its answer.
  ///
  /// Suspends the coroutine until URLSession's callback has the answer, or the coroutine is cancelled: then the request
  /// is cancelled too. Off a coroutine: `CoroutineError.notInCoroutine`, and nothing is sent.
  func send(_ request: URLRequest) throws -> Data {
    // Needed because `onCancel` is handed over before the request exists.
    let cancellation = Cancellation()
    return try co_suspend(onCancel: cancellation.cancel) { done in
      let task = send(request) { done.resume(with: $0) }
      cancellation.covers { _ in task.cancel() }
    }
  }
}
#endif
