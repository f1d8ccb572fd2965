// The last step of a drain. It is in a file of its own so that the interleaving tests can compile it without the rest
// of a scheduler.

extension Scheduler {
  /// Ends the drain unless there is something to do by now; returns whether it has ended.
  ///
  /// Called by the drain, which has found nothing to do.
  func endDrain() -> Bool {
    let pool = readyQueue.pointee.workerPool
    if inbox.goIdle() {
      // An offer that came before the inbox was idle has taken the worker's idle bit, and could not start a drain.
      guard let pool, pool._withUnsafeGuaranteedRef({ $0.wasOffered(self) }), inbox.wakeUp() else { return true }
    }
    pool?._withUnsafeGuaranteedRef { $0.markBusy(self) }
    return false
  }
}
