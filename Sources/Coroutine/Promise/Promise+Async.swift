import Synchronization

extension AnyPromise {
  /// Suspends the Task until the promise is settled, or throws `CancellationError` once the Task is cancelled.
  ///
  /// In the second case the promise is cancelled too if the Task was its last consumer.
  final func awaitSettled() async throws {
    guard !completion.isSettled else { return ignore() }
    let wait = CancellableWait(self)
    await withTaskCancellationHandler {
      await AsyncWait.untilCalled { wait.start($0) }
    } onCancel: {
      wait.cancel()
    }
    guard completion.isSettled else {
      consumerWasCancelled()
      throw CancellationError()
    }
  }
}

/// A Task's wait for a promise.
///
/// It ends once: the promise fires the callback, or the Task's cancellation fires it.
private final class CancellableWait: @unchecked Sendable {
  // Sound because both variables are under `lock`, and the promise guards itself.
  private let promise: AnyPromise
  private let lock = SpinLock()
  @exclusivity(unchecked) private var callback: WaitCallback?
  @exclusivity(unchecked) private var isCancelled = false

  init(_ promise: AnyPromise) { self.promise = promise }

  /// Starts the wait.
  ///
  /// Returns false if the Task must not wait.
  func start(_ callback: WaitCallback) -> Bool {
    guard promise.link(callback) else { return false }
    lock.lock()
    self.callback = callback
    let isLate = isCancelled
    lock.unlock()
    // The Task was cancelled while the callback was being added. The thread that removes the callback fires it.
    if isLate, promise.unlink(callback) { return false }
    return true
  }

  func cancel() {
    lock.lock()
    isCancelled = true
    let callback = callback
    lock.unlock()
    if let callback, promise.unlink(callback) { callback.fire() }
  }
}
