#if Demo
/// Brings a cancellation and what it is to cancel together, whichever comes first: a signal or a timeout may arrive, on
/// another thread, before the request or job that it is meant for exists.
///
/// `state` owns both halves until they meet; the action runs once, outside the lock.
final class Cancellation: Sendable {
  private struct State: Sendable {
    var reason: (any Error)?
    var action: (@Sendable (any Error) -> Void)?
  }

  private let state = Locked(State())

  /// nil: nobody has cancelled.
  var reason: (any Error)? { state.withLock { $0.reason } }

  /// What to do on cancellation, instead of what was to be done until now; done at once where it has come already.
  func covers(_ action: @escaping @Sendable (any Error) -> Void) {
    let reason = state.withLock { state in
      if state.reason == nil { state.action = action }
      return state.reason
    }
    if let reason { action(reason) }
  }

  func cancel() {
    cancel(CancellationError())
  }

  /// The first reason counts.
  func cancel(_ reason: any Error) {
    let action: (@Sendable (any Error) -> Void)? = state.withLock { state in
      guard state.reason == nil else { return nil }
      state.reason = reason
      defer { state.action = nil }
      return state.action
    }
    action?(reason)
  }
}
#endif
