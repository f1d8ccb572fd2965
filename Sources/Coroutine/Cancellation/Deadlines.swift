import Synchronization

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Moves the timers of this job's deadlines to another scheduler.
  ///
  /// Called on the job's own carrier.
  func moveDeadlines(to destination: Scheduler) {
    var frame = pointee.frames
    while let current = frame {
      if let (node, old) = current.pointee.timer {
        let isPending = old._withUnsafeGuaranteedRef { $0.take(node) }
        // Fired or not, the old scheduler may have been released when the deadline's frame ends.
        current.pointee.timer = (node, Unmanaged.passUnretained(destination))
        if isPending { destination.add(node, now: destination.clock) }
      }
      frame = current.pointee.outer
    }
  }
}
