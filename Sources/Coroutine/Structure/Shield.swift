import Synchronization

/// Hides cancellation from outside (of the job, of enclosing deadlines and scopes) while `body` runs, so that cleanup
/// can wait; it is seen again at the next suspension after the end.
///
/// Deadlines and scopes inside of `body` work as ever. Runs here and now; outside of a coroutine it just calls `body`.
@discardableResult
public func co_shield<Output>(_ body: () throws -> Output) rethrows -> Output {
  guard let job = Carrier.current?.pointee.job else { return try body() }
  var frame = CancelFrame(.shield, inside: job.pointee.frames)
  return try withUnsafeMutablePointer(to: &frame) { frame in
    job.pointee.frames = frame
    let wasShielded = job.setShielded(true)
    defer {
      job.pointee.frames = frame.pointee.outer
      _ = job.setShielded(wasShielded)
    }
    return try body()
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether values reach the job although it is cancelled; returns what it was.
  ///
  /// Own turn.
  func setShielded(_ isShielded: Bool) -> Bool {
    let old =
      isShielded
      ? pointee.flags.bitwiseOr(JobFlags.shielded, ordering: .acquiringAndReleasing).oldValue
      : pointee.flags.bitwiseAnd(~JobFlags.shielded, ordering: .acquiringAndReleasing).oldValue
    return old & JobFlags.shielded != 0
  }
}
