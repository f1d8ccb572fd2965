import Synchronization

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Takes the timers of this job's deadlines along to another scheduler.
  ///
  /// Own turn.
  func moveDeadlines(to destination: Scheduler) {
    var frame = pointee.frames
    while let current = frame {
      if let (node, old) = current.pointee.timer {
        let isPending = old._withUnsafeGuaranteedRef { $0.take(node) }
        // Fired or not, the old scheduler may be gone by the time the deadline's frame goes.
        current.pointee.timer = (node, Unmanaged.passUnretained(destination))
        if isPending { destination.add(node, now: destination.clock) }
      }
      frame = current.pointee.outer
    }
  }
}
