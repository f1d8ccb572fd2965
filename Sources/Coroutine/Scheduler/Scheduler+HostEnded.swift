import Synchronization

// The end of a scheduler whose host ends before the process does: a loop of another library that is shut down.
//
//   RUNNING -- end(error), under `liveLock`: `endedBy` is set, and the live jobs are listed --> ENDED for ever
//
// Every job is registered under the same lock (Scheduler.register). So exactly one of two cases holds: the job is on
// the list, and is cancelled; or it is registered later, sees `endedBy`, and is refused before it is published, so that
// its body never runs.
//
// The host continues its drains until no job is live: cancelled jobs unwind there, and release what they hold.

extension Scheduler {
  /// Cancels all jobs that are live, and fails all that are launched later, with `error`.
  ///
  /// Any thread; the first error counts. Does not wait.
  func end(_ error: any Error) {
    for job in takeLive(endingWith: error) { job.cancel(error) }
  }

  /// Notes the end, and returns the live jobs.
  ///
  /// The array is allocated outside of the lock, which covers words only.
  private func takeLive(endingWith error: any Error) -> [AnyJob] {
    var jobs: [AnyJob] = []
    while true {
      jobs.reserveCapacity(liveLock.withLock { liveness.jobs })
      let isComplete = liveLock.withLock {
        guard liveness.jobs <= jobs.capacity else { return false }
        if liveness.endedBy == nil { liveness.endedBy = error }
        var next = liveness.first
        while let job = next {
          // The list holds it: a job is unregistered, under this lock, before the runtime releases it.
          jobs.append(job.handle.takeUnretainedValue())
          next = job.pointee.nextLive
        }
        return true
      }
      if isComplete { return jobs }
    }
  }

  /// Makes a job that has just been registered end without running its body.
  func refuse(_ job: JobRef) {
    guard let error = liveLock.withLock({ liveness.endedBy }) else { return }
    job.handle._withUnsafeGuaranteedRef { $0.refuse(error) }
  }

  /// Whether a job that was launched here has not ended, wherever it runs now.
  var hasLiveJobs: Bool { liveLock.withLock { liveness.jobs > 0 } }
}

extension AnyJob {
  /// Makes a job end without running its body.
  ///
  /// Called between its registration and its publication, so that no interrupt is needed. The drain that comes to the
  /// job settles it.
  final func refuse(_ error: any Error) {
    let isFirst = record.setCancelReason(error)
    // Settled here if another thread has set the reason: it may come second, and then leaves that to this one.
    if record.claimCancel(), !isFirst { settleDropped() }
  }
}
