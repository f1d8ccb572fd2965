internal import CCoroutine
import Synchronization

extension Job {
  /// The result, for async code.
  ///
  /// Cancelling the awaiting Task cancels the job; its outcome is then still what is returned or thrown. Starts a lazy
  /// job. Suspends the Task, never blocks a thread.
  public var value: Success {
    get async throws {
      start()
      return try await withTaskCancellationHandler {
        if completion.isSettled {
          // Not by a callback, which would wait for those that are being called.
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
  /// Suspends the Task until the callback that `add` gets is called; `add` answers false where it never will be.
  ///
  /// ThreadSanitizer does not see that resuming a continuation happens before what follows the await, so it is told. It would
  /// also take resuming for a race with the await: one that is resumed before its task gets there goes on without a dispatch.
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
