// Spare workers. If every worker of the pool is busy with a job that computes for long, or blocks its thread, the work
// behind those jobs would wait for their end: two sleeping calls on two processors would stop a server. A spare worker
// takes that work over. It is a worker as the others are, with these differences:
//
//   * only the watchdog gives it work: it has no idle bit, so nobody offers it any, and it steals none,
//   * a job that it has resumed once may come back to it, by a wake-up from outside the pool,
//   * without work it sleeps, and is the first to be used again.
//
// The bound is what a thread costs in memory, some ten kilobytes: a process that blocks more threads than that should
// use co_blocking, which has a bound that can be set.

extension WorkerPool {
  /// The largest number of spare workers.
  private static var most: Int { 64 }

  /// Returns a spare worker without work, or a new one; nil at the limit.
  ///
  /// Called by the watchdog only.
  func spareWorker() -> Scheduler? {
    if let free = spares.first(where: { $0.inbox.isIdle }) { return free }
    guard spares.count < Self.most else { return nil }
    let made = WorkerHost.makeScheduler("\(label).spare.\(spares.count)", self, workers.count + spares.count)
    spares.append(made)
    lastSeen.append(Seen())
    return made
  }
}
