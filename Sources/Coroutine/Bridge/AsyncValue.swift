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
      await JobWait(self).wait()
      guard completion.isSettled else { throw CancellationError() }
      return try completion.get(as: Success.self)
    }
  }
}

/// A Task's wait for a job.
private final class JobWait: TaskWait, @unchecked Sendable {
  // Sound because `job` never changes, and guards itself.
  private let job: AnyJob

  init(_ job: AnyJob) {
    self.job = job
    super.init()
  }

  override func link() -> Bool {
    job.completion.touch()
    return job.completion.add(self)
  }

  override func leave() -> Bool {
    switch job.completion.removeUnlessLast(self) {
    case .removed: return true
    case .isLast: job.cancel()
    case .hasFired: break
    }
    return false
  }
}
