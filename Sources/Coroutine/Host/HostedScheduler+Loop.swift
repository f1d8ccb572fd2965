import Synchronization

// What a loop needs in addition that can be shut down, and whose own calls run coroutines. It is `@_spi(Hosting)`: a
// host of coroutines is written without it, as the example of CoroutineHost is.

@_spi(Hosting)
extension HostedScheduler {
  /// The drain of the scheduler.
  ///
  /// It may be called only if the scheduler has submitted one, once for each submit, on the host's thread.
  public var drain: HostedDrain { HostedDrain(scheduler: scheduler) }

  /// Begins an operation that may wait, as ``HostedWaiters/begin()``, of a coroutine of this scheduler; returns false,
  /// and has done nothing, in a coroutine of another one.
  ///
  /// May suspend, if the drain has run for long. Throws the cancellation error, and
  /// ``CoroutineError/notInCoroutine`` outside a coroutine.
  @available(*, noasync, message: "call it in a coroutine of the host")
  public func begin() throws -> Bool {
    let (carrier, job) = try Carrier.requireJob()
    if !owns(job) { return false }
    _ = Carrier.countWait(carrier, job)
    try job.checkCancelled()
    return true
  }

  /// Whether the calling code is a coroutine of this scheduler.
  ///
  /// Any thread; does not suspend.
  public var runsCaller: Bool { Carrier.current?.pointee.job.map(owns) ?? false }

  private func owns(_ job: JobRef) -> Bool {
    job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == Unmanaged.passUnretained(scheduler).toOpaque()
  }
}

@_spi(Hosting)
extension HostedDrain {
  /// Whether the calling thread runs coroutines of any scheduler, so that no drain may begin.
  ///
  /// Any thread; does not wait.
  public static var isInside: Bool { Carrier.current != nil }

  /// Wakes all coroutines that wait in `waiters`, and runs them within this call.
  ///
  /// Called on the host's thread. Returns false, and has done nothing, if that thread runs coroutines already, or if a
  /// drain is submitted. Otherwise the call is a drain: it runs what is ready, and submits another one if that takes
  /// longer than a time slice. It is cheaper than ``HostedWaiters/wakeAll()`` and a submitted drain, because what it
  /// wakes need not pass the scheduler's inbox.
  public func run(waking waiters: HostedWaiters) -> Bool {
    if HostedDrain.isInside || !scheduler.inbox.wakeUp() { return false }
    scheduler.drain { waiters.wakeAll() }
    return true
  }

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
