// The second way to inspect a job: its interrupt is in the inbox of a queue that it has left (Interrupt.swift).

extension AnyJob {
  /// Asks the job's scheduler to inspect its cancellation, by work that holds the job.
  ///
  /// Rare, so it may allocate. Any thread.
  func interruptPastStray() {
    let scheduler = currentScheduler
    scheduler.push(.work(ClosureWork.retained({ [self] in scheduler.inspect(record) }, nil)))
  }
}
