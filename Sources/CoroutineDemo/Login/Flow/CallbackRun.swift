#if Demo
import Coroutine
import Dispatch
import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// What the callback version must do by hand and a Job does for every coroutine: one end, a deadline, cancellation of
/// whatever is in flight, and a place to wait.
///
///     under way ── finish | fail | cancel | time up ──► ended (the first counts; the rest see that they are late)
///
/// `state` owns the outcome and the request in flight. Each callback must ask whether the run has ended before it goes
/// on.
final class CallbackRun: Sendable {
  private struct State: Sendable {
    var outcome: Result<Void, any Error>?
    var request: URLSessionTask?
  }

  private let state = Locked(State())
  private let progress: Progress<LoginStep>
  private let cleanUp: @Sendable () -> Void
  let cleanUpQueue = DispatchQueue(label: "cleanup")
  private let ended = DispatchSemaphore(value: 0)

  init(progress: Progress<LoginStep>, cleanUp: @escaping @Sendable () -> Void) {
    self.progress = progress
    self.cleanUp = cleanUp
  }

  /// Ends the run when `timeout` has passed, unless it has ended by then.
  func cancel(after timeout: Duration) {
    let milliseconds = timeout.components.seconds * 1000 + timeout.components.attoseconds / 1_000_000_000_000_000
    DispatchQueue.global().asyncAfter(deadline: .now() + .milliseconds(Int(milliseconds))) { [weak self] in
      self?.cancel(TimeoutError())
    }
  }

  /// False: the run has ended meanwhile, do not go on.
  func begin(_ step: LoginStep) -> Bool {
    guard isUnderWay else { return false }
    progress.begin(step)
    return true
  }

  /// False: the run has ended meanwhile, do not go on.
  func complete(_ step: LoginStep) -> Bool {
    guard isUnderWay else { return false }
    progress.complete(step)
    return true
  }

  /// The request that a cancellation must reach from now on.
  func covers(_ request: URLSessionTask?) {
    let isLate = state.withLock { state in
      state.request = request
      return state.outcome != nil
    }
    if isLate { request?.cancel() }
  }

  func fail(_ step: LoginStep, _ error: any Error) {
    guard isUnderWay else { return }
    progress.end(step, as: .failed)
    finish(.failure(StepFailure(step: step, cause: error)))
  }

  func cancel(_ reason: any Error) {
    guard isUnderWay else { return }
    if let step = progress.unfinished { progress.end(step, as: .stopped) }
    finish(.failure(reason))
  }

  /// Only the first outcome counts; it cancels what is in flight and cleans up.
  func finish(_ outcome: Result<Void, any Error>) {
    let (isFirst, request) = state.withLock { state in
      guard state.outcome == nil else { return (false, URLSessionTask?.none) }
      state.outcome = outcome
      return (true, state.request)
    }
    guard isFirst else { return }
    request?.cancel()
    // Not here: the cleanup waits for URLSession's callbacks, and this may be one of them.
    cleanUpQueue.async { [cleanUp, ended] in
      cleanUp()
      ended.signal()
    }
  }

  /// Blocks the calling thread until the end.
  func wait() throws {
    ended.wait()
    ended.signal()
    try state.withLock { $0.outcome }?.get()
  }

  private var isUnderWay: Bool { state.withLock { $0.outcome == nil } }
}
#endif
