internal import CCoroutine
import Synchronization

// If a Task that waits for a job is cancelled, there are two cases:
// - If another consumer waits for the job (a coroutine that joins it, another Task, an observer), the Task removes its
//   callback and throws CancellationError. The job continues.
// - If the Task is the last consumer, it cancels the job, and continues to wait for the job's outcome.
//
// Whether there is another consumer is decided under the completion's lock, where the callback is taken out as well. So
// of several Tasks that are cancelled at once, the last one finds no other consumer. A consumer that arrives after the
// decision finds a cancelled job, as if it had arrived later. The callbacks of `finally` and of scopes, which do not
// take the result, are no consumers.

extension Job {
  /// The result, for async code.
  ///
  /// Suspends the Task, never blocks a thread. Starts a lazy job. If the awaiting Task is cancelled:
  /// - if nothing else waits for the job's result, the job is cancelled, and its outcome is returned or thrown;
  /// - if something else waits for it, the job continues, and this throws `CancellationError` at once.
  ///
  /// ``uncancelled`` never cancels the job.
  public var value: Success {
    get async throws {
      start()
      guard !completion.isSettled else {
        // Without a callback, because it would be called after all callbacks that are being called now.
        completion.pointee.isObserved.store(true, ordering: .relaxed)
        return try completion.get(as: Success.self)
      }
      let wait = JobWait(self)
      await withTaskCancellationHandler {
        await AsyncWait.untilCalled { wait.start($0) }
      } onCancel: {
        wait.cancel()
      }
      guard completion.isSettled else { throw CancellationError() }
      return try completion.get(as: Success.self)
    }
  }
}

/// A Task's wait for a job.
private final class JobWait: @unchecked Sendable {
  // Sound because both variables are under `lock`, and the job guards itself.
  private let job: AnyJob
  private let lock = SpinLock()
  @exclusivity(unchecked) private var callback: WaitCallback?
  @exclusivity(unchecked) private var isCancelled = false

  init(_ job: AnyJob) { self.job = job }

  /// Starts the wait.
  ///
  /// Returns false if the Task must not wait.
  func start(_ callback: WaitCallback) -> Bool {
    guard job.completion.add(callback) else { return false }
    lock.lock()
    self.callback = callback
    let isLate = isCancelled
    lock.unlock()
    // If the Task was cancelled before this, `cancel` had no callback to remove.
    return !(isLate && leaves(callback))
  }

  func cancel() {
    lock.lock()
    isCancelled = true
    let callback = callback
    lock.unlock()
    if let callback, leaves(callback) { callback.fire() }
  }

  /// Removes the callback and returns true if the job has another consumer; otherwise cancels the job.
  private func leaves(_ callback: WaitCallback) -> Bool {
    switch job.completion.removeUnlessLast(callback) {
    case .removed: return true
    case .isLast: job.cancel()
    case .hasFired: break
    }
    return false
  }
}

enum AsyncWait {
  /// Suspends the Task until the callback that `add` gets is called; `add` returns false if it will never be called.
  ///
  /// ThreadSanitizer does not see that resuming a continuation happens before the code after the await, so it is told.
  /// It would also report a race between resuming and the await: a continuation that is resumed before its Task
  /// suspends continues without a dispatch.
  static func untilCalled(_ add: (WaitCallback) -> Bool) async {
    let tag = Tag()
    let address = UnsafeRawPointer(Unmanaged.passUnretained(tag).toOpaque())
    nonisolated(unsafe) let sent = address  // Sound because only its value is used, and `tag` outlives the wait.
    await withUnsafeContinuation { (continuation: UnsafeContinuation<Void, Never>) in
      let resume: @Sendable () -> Void = {
        cco_publish(sent)
        cco_unrecorded_begin()
        continuation.resume()
        cco_unrecorded_end()
      }
      if !add(ClosureCallback(resume)) { resume() }
    }
    cco_observe(sent)
    withExtendedLifetime(tag) {}
  }

  private final class Tag: Sendable {}
}
