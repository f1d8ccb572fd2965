import Synchronization

// What a loop needs that can be shut down, and whose own calls run coroutines. CoroutineNIO is built on nothing else.

extension HostedScheduler {
  /// The drain of the scheduler.
  ///
  /// It may be called only if the scheduler has submitted one, once for each submit, on the host's thread.
  public var drain: HostedDrain { HostedDrain(scheduler: scheduler) }

  /// Throws ``CoroutineError/notInCoroutine`` outside a coroutine, and traps with `sentence` in a coroutine of another
  /// scheduler.
  ///
  /// Any thread; does not suspend.
  public func requireOwnCoroutine(_ sentence: @autoclosure () -> String) throws {
    let (_, job) = try Carrier.requireJob()
    if !owns(job) { misuse(sentence()) }
  }

  /// Whether the calling code is a coroutine of this scheduler.
  ///
  /// Any thread; does not suspend.
  public var runsCaller: Bool { Carrier.current?.pointee.job.map(owns) ?? false }

  private func owns(_ job: JobRef) -> Bool {
    job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(scheduler).toOpaque()
  }
}

extension HostedDrain {
  /// Whether the calling thread runs coroutines of any scheduler, so that no drain may begin.
  ///
  /// Any thread; does not wait.
  public static var isInside: Bool { Carrier.current != nil }

  /// Cancels all live coroutines, and fails all coroutines that are launched later, with `error`.
  ///
  /// Any thread; does not wait. The first call determines the error. The host goes on making drains until
  /// ``hasLiveJobs`` is false, and also after that, for handlers and for jobs that are launched too late.
  public func end(_ error: any Error) { scheduler.end(error) }

  /// Whether a coroutine that was launched on the host has not ended.
  ///
  /// Any thread; does not wait.
  public var hasLiveJobs: Bool { scheduler.hasLiveJobs }
}
