#if NIO
import Coroutine
import NIOConcurrencyHelpers

/// Calls a completion once, unless it is cancelled before: NIO cannot remove a callback.
final class FutureObserver<Output: Sendable>: Sendable {
  typealias Completion = @Sendable (Result<Output, any Error>) -> Void
  // Taken under the lock, called outside of it.
  private let completion: NIOLockedValueBox<Completion?>

  init(_ completion: @escaping Completion) { self.completion = NIOLockedValueBox(completion) }

  func complete(_ result: Result<Output, any Error>) { take()?(result) }

  func cancel() { _ = take() }

  private func take() -> Completion? { completion.withLockedValue { $0.take() } }
}

/// An observer as the callback of a future holds it.
///
/// Nothing else holds a registration. So its deinit tells that the callback has been called, or never will be: the loop
/// was shut down, or the future released.
final class FutureRegistration<Output: Sendable>: Sendable {
  let observer: FutureObserver<Output>

  init(_ observer: FutureObserver<Output>) { self.observer = observer }

  deinit { observer.complete(.failure(CoroutineError.abandoned)) }
}
#endif
