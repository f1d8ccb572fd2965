#if Demo
import Dispatch

/// Runs async code and blocks the calling thread until it is done.
///
/// Only for threads that nobody else waits for: the main thread before and after the job, and a cleanup queue's. On a
/// thread of Swift's own pool it could wait for work that only that thread would do, hence unavailable from async code.
@available(*, noasync)
func blockingAwait<Output: Sendable>(_ operation: @escaping @Sendable () async throws -> Output) throws -> Output {
  let result = Locked<Result<Output, any Error>?>(nil)
  let done = DispatchSemaphore(value: 0)
  Task {
    let outcome: Result<Output, any Error>
    do {
      outcome = .success(try await operation())
    } catch {
      outcome = .failure(error)
    }
    result.withLock { $0 = outcome }
    done.signal()
  }
  done.wait()
  guard let outcome = result.withLock({ $0 }) else { preconditionFailure("signalled before the outcome was stored") }
  return try outcome.get()
}
#endif
