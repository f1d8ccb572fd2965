// Spare workers. If every worker of the pool is busy with a job that computes for long, or that blocks its thread, the
// other jobs of those workers would wait for these jobs to end. Two blocking calls on two processors would stop a
// server. A spare worker takes those jobs over. It differs from the other workers in three ways:
//
// - Only the watchdog gives it work. It has no idle bit, so no worker offers it work, and it does not steal.
// - A job that it has resumed once may return to it, by a wake-up from outside the pool.
// - Without work it sleeps, and is reused before a new one is created. After ten seconds without work its thread ends,
//   and the next work starts another one (WorkerWord.swift). Its scheduler stays, and so do the coroutines that are
//   parked there.
//
// Their number is limited because each thread costs some ten kilobytes of memory. A process that blocks more threads
// should use co_blocking, whose limit can be set.

extension WorkerPool {
  /// The largest number of spare workers.
  private static var most: Int { 64 }

  /// Returns a spare worker without work, or a new one; nil at the limit.
  ///
  /// Called by the watchdog only.
  func spareWorker() -> Scheduler? {
    if let free = spares.first(where: { $0.inbox.isIdle }) { return free }
    guard spares.count < Self.most else { return nil }
    let index = workers.count + spares.count
    let made = WorkerHost.makeScheduler("\(label).spare.\(spares.count)", self, index, rest: spareRest)
    spares.append(made)
    SchedulerRegistry.ended.addShared(to: .spareWorkers)
    watched.append(WatchedWorker())
    return made
  }
}
