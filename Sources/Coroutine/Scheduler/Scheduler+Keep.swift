import Synchronization

// Coroutines that keep their thread (co_pinned). From `keepThread` to `releaseThread`, all code of the job runs on one
// thread. The job may wait, and other jobs run on that thread meanwhile.
//
// The argument has two steps.
//
// 1. The scheduler has one thread. A job runs in the drain of its scheduler (Scheduler.swift, 1). If the host has a
//    thread of its own, every drain is on that thread:
//    - a worker's. A spare worker's thread ends after a time without work, and the next work starts another one. So it
//      does not end while `keepers` is not zero (WorkerHost.mayEnd). Only the thread and the coroutines on it use that
//      number.
//    - the thread of a CoroutineHost, and the one that drives a simulated world.
//    One case is not in a drain: an immediate start on a thread that is not the scheduler's (ImmediateStart.swift).
//    Such a job first leaves that thread, as by a yield (`requireOwnThread`).
//
// 2. The scheduler of the job does not change. This table lists all code that stores `JobRecord.scheduler`:
//
//      code                                             why it does not move the job
//      the job: co_switch, co_isolated (Arrival)        `requireMovable` throws
//      a waker on another worker (takeAlong)            `staysThere`
//      a batch of events on another worker (takeAlong)  the same
//      a worker that steals (takeHalf)                  takes only jobs that do not keep their thread
//      a take-over, ready jobs (takeHalf)               the same
//      a take-over, jobs in the inbox (mayMove)         `staysThere`
//
// Why all of them see the flag. The job sets it while it runs, and clears it while it runs. The other code reads the
// flag of a job that is parked and claimed, or ready. By the claim of the wait, or under the lock of the ready queue,
// it has acquired what the job did before it left its stack. So it sees the current value, and the job does not run
// until the other thread has decided. A queue without the mark `kept` contains no such job: the owner sets the mark,
// under the lock, before the first one can be ready there, and clears it after the last one has cleared its flag.
//
// Nesting, errors, generators. Each co_pinned has a frame in the chain of cancellation frames (Cancellation.swift),
// which has no effect on cancellation. The outermost one sets the flag and clears it. A generator's body that yields
// inside of it gets CoroutineError.yieldInsideScope, as in every other frame: the next step may come from another job.
//
// Other jobs pay nothing. The flag is one more bit of masks that are tested anyway, and the mark is one more bit of a
// byte that a steal reads. The watchdog takes over jobs behind a coroutine that computes on a kept thread as usual, but
// not jobs that keep their thread. A worker that finds only such jobs to steal counts that as a steal that does not pay
// (WorkerHost.swift). Otherwise it would be woken for each of them.

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Brings the running job to the one thread of its scheduler; throws if the scheduler has none.
  ///
  /// Suspends only if the job was started immediately on another thread, and has not suspended since.
  func requireOwnThread() throws {
    while true {
      let scheduler = pointee.scheduler.load(ordering: .relaxed)
      let isThere = try scheduler._withUnsafeGuaranteedRef { scheduler in
        guard scheduler.host.hasOwnThread else { throw CoroutineError.cannotPin }
        return scheduler.isRunningHere
      }
      guard !isThere, let carrier = Carrier.current else { return }
      Carrier.giveWay(carrier, self)
    }
  }

  /// Makes the running job keep its thread; returns false if it does already.
  func keepThread() -> Bool {
    let old = pointee.flags.bitwiseOr(JobFlags.keepsThread, ordering: .acquiringAndReleasing).oldValue
    guard old & JobFlags.keepsThread == 0 else { return false }
    pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.changeKeepers(by: 1) }
    return true
  }

  /// Lets the running job change its thread again.
  func releaseThread() {
    _ = pointee.flags.bitwiseAnd(~JobFlags.keepsThread, ordering: .acquiringAndReleasing)
    // In a forked child no thread is left that could have stolen the job, or that holds the lock.
    if ForkedChild.isHere { return }
    pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.changeKeepers(by: -1) }
  }

  /// Throws if the running job must stay on its scheduler.
  func requireMovable() throws {
    if keepsThread { throw CoroutineError.cannotPin }
  }
}

extension Scheduler {
  /// Changes the number of live jobs that keep the thread.
  ///
  /// Called by such a job, on the thread.
  fileprivate func changeKeepers(by difference: Int) {
    keepers += difference
    if readyQueue.pointee.workerPool != nil { readyQueue.markKept(keepers > 0) }
  }
}
