import Synchronization

// What CoroutineNIO needs of a hosted scheduler beyond the public interface, for loops that can be shut down.

extension HostedScheduler {
  /// The call that the loop makes.
  ///
  /// It may be made only if the scheduler has submitted one.
  package var drain: HostedDrain { HostedDrain(scheduler: scheduler) }

  /// Throws ``CoroutineError/notInCoroutine`` outside a coroutine, and traps with `sentence` in a coroutine of another
  /// scheduler.
  package func requireOwnCoroutine(_ sentence: @autoclosure () -> String) throws {
    let (_, job) = try Carrier.requireJob()
    if !owns(job) { misuse(sentence()) }
  }

  /// Whether the calling code is a coroutine of this scheduler.
  package var runsCaller: Bool { Carrier.current?.pointee.job.map(owns) ?? false }

  private func owns(_ job: JobRef) -> Bool {
    job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(scheduler).toOpaque()
  }
}

extension HostedDrain {
  /// Whether the calling thread runs coroutines at this moment, of whatever scheduler: no drain may begin inside.
  package static var isInside: Bool { Carrier.current != nil }

  /// Cancels all coroutines that are live, and fails all that are launched from now on, with `error`.
  ///
  /// Any thread; the first error counts. Does not wait.
  package func end(_ error: any Error) { scheduler.end(error) }

  /// Whether a coroutine that was launched on the host has not ended.
  package var hasLiveJobs: Bool { scheduler.hasLiveJobs }
}
