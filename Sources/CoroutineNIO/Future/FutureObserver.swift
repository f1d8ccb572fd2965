#if NIO
import Coroutine
import NIOConcurrencyHelpers

/// Calls a completion once, unless it is cancelled before.
///
/// It exists because NIO cannot remove a callback.
final class FutureObserver<Output: Sendable>: Sendable {
  typealias Completion = @Sendable (Result<Output, any Error>) -> Void
  // Taken under the lock, called outside of it.
  private let completion: NIOLockedValueBox<Completion?>

  init(_ completion: @escaping Completion) { self.completion = NIOLockedValueBox(completion) }

  func complete(_ result: Result<Output, any Error>) { take()?(result) }

  func cancel() { _ = take() }

  private func take() -> Completion? { completion.withLockedValue { $0.take() } }
}

/// The reference of a future's callback to its observer.
///
/// Only the callback holds a registration. So its deinit means that the callback was called, or will never be called,
/// because the loop was shut down or the future released.
final class FutureRegistration<Output: Sendable>: Sendable {
  let observer: FutureObserver<Output>

  init(_ observer: FutureObserver<Output>) { self.observer = observer }

  deinit { observer.complete(.failure(CoroutineError.abandoned)) }
}
#endif
