import Synchronization

// How a select parks: with a timeout or without one, or without any case.

extension SelectRun {
  /// Parks until a case or the timeout, in nanoseconds, ends the wait.
  @inline(__always)
  static func park(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    for source: UInt,
    _ timeout: UInt?,
    publish: (WaitEpoch) -> Void,
    withdraw: () -> Void
  ) throws -> UInt8 {
    if let timeout { return try park(carrier, job, for: source, atMost: timeout, publish, withdraw) }
    return try WaitQueue.park(carrier, job, .select, for: source, publish: publish, withdraw: withdraw)
  }

  private static func park(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    for source: UInt,
    atMost nanoseconds: UInt,
    _ publish: (WaitEpoch) -> Void,
    _ withdraw: () -> Void
  ) throws -> UInt8 {
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    return try scheduler._withUnsafeGuaranteedRef { scheduler in
      let now = scheduler.clock
      var timer = TimerNode(deadline: scheduler.deadline(Int64(clamping: nanoseconds), after: now), job)
      return try withUnsafeMutablePointer(to: &timer) { timer in
        let reason = try WaitQueue.park(carrier, job, .select, for: source) { epoch in
          publish(epoch)
          // After the locks are left: starting a timer may allocate.
          scheduler.add(timer, waking: epoch, now: now)
        } withdraw: {
          scheduler.remove(timer)
          withdraw()
        }
        if reason != WakeReason.timer { scheduler.remove(timer) }
        return reason
      }
    }
  }

  /// Waits for the end of a select without cases.
  @usableFromInline
  static func waitForCancellation() throws -> Never {
    let (carrier, job) = try Carrier.beginWaiting()
    job.pointee.selectCount.store(0, ordering: .relaxed)
    try WaitQueue.park(carrier, job, .select) { _ in
    } withdraw: {
    }
    misuse("a select without cases has ended without a cancellation")
  }

  /// The length of a timeout; zero means that it is ready at once.
  @usableFromInline
  static func nanoseconds(_ duration: Duration) -> UInt {
    UInt(clamping: duration.nanoseconds)
  }
}
