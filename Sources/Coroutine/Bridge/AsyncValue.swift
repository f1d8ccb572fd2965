internal import CCoroutine
import Synchronization

extension Job {
  /// The result, for async code.
  ///
  /// Cancelling the awaiting Task cancels the job. The job's outcome is still returned or thrown. Starts a lazy job.
  /// Suspends the Task, never blocks a thread.
  public var value: Success {
    get async throws {
      start()
      return try await withTaskCancellationHandler {
        if completion.isSettled {
          // No callback is added: it would be called after all callbacks that are being called now.
          completion.pointee.isObserved.store(true, ordering: .relaxed)
        } else {
          await AsyncWait.untilCalled { completion.add($0) }
        }
        return try completion.get(as: Success.self)
      } onCancel: {
        cancel()
      }
    }
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
