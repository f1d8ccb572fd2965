internal import CCoroutine
import Synchronization

// Who keeps a thread. The watchdog asks for the workers of its pool (Watchdog.swift), and QueueStalls.swift for the
// queues of the program.

/// The coroutine, or the job of a Task, that seems to be stalling a thread.
struct StallSuspect {
  /// Its number; 0 if it was not found, `max` for a Task.
  let id: UInt64
  /// A number that each wait and each yield changes (`stallMark`); for a Task `Scheduler.swiftJobChanges`.
  let mark: UInt64
  /// The time that the thread had been kept when it was found, in ns.
  let total: UInt64
  /// The time that the thread had been kept when the stall was reported, or was last found to go on; nil before.
  var reported: UInt64?

  init(id: UInt64, mark: UInt64, total: UInt64) {
    (self.id, self.mark, self.total) = (id, mark, total)
  }
}

extension Scheduler {
  /// Reports the coroutine or the Task that has kept this scheduler's thread to the handler; returns whether it has
  /// done so.
  ///
  /// A scheduler reads its clock only after some jobs, so `use` may be the time of several. A job is reported only if
  /// it was found there a threshold ago, and has neither waited nor yielded since. For the same reason the search goes
  /// on after a report, four times in a threshold: the next job may stall before the scheduler reads its clock. Called
  /// after each sample of the thread. `homes` are the schedulers in whose lists the job may be.
  func reportStall(
    _ use: ThreadUse,
    of thread: Int32,
    _ suspect: inout StallSuspect?,
    searching homes: () -> [Scheduler]
  ) -> Bool {
    let threshold = CoroutineRuntime.Stall.threshold
    // The search takes the locks of all workers, so it is made only for a handler and a likely stall.
    guard use.total > threshold / ThreadUse.samples, let handler = CoroutineRuntime.Stall.currentHandler else {
      return false
    }
    if let reported = suspect?.reported, use.total - reported < threshold / 4 { return false }
    let changes = swiftJobChanges
    let isTask = changes & 1 != 0
    let (job, isSure) = isTask ? (nil, false) : runningJob(homes())
    // Without a job, the thread is waiting for a processor, or the coroutine has just ended.
    if job == nil, isSure { return false }
    let id = isTask ? .max : job?.id ?? 0
    let mark = isTask ? changes : job?.record.stallMark ?? 0
    guard let found = suspect, found.id == id, found.mark == mark else {
      suspect = StallSuspect(id: id, mark: mark, total: use.total)
      return false
    }
    if found.reported != nil {
      suspect?.reported = use.total
      return false
    }
    let kept = use.total - found.total
    guard kept > threshold, let activity = use.activity else { return false }
    suspect?.reported = use.total
    cco_note_incident(CCO_INCIDENT_STALL)
    let isOurs = host.hasOwnThread
    let stack = job.map { ThreadStack.read(of: thread, activity, since: mark, $0, isOurs: isOurs) } ?? []
    handler(
      CoroutineRuntime.Stall(
        coroutine: job?.summary,
        launchSite: job?.record.label.pointee.launchSite.description,
        isTask: isTask,
        duration: .nanoseconds(Int64(kept)),
        worker: label,
        thread: thread,
        stack: stack,
        activity: activity
      )
    )
    return true
  }

  /// Returns the job that runs on this scheduler, and whether the search was complete.
  ///
  /// It inspects the live jobs of each of `homes`, because a job is in the list of the scheduler where it was launched.
  /// It is bounded, because launches and ends of jobs wait for the lock.
  private func runningJob(_ homes: [Scheduler]) -> (job: AnyJob?, isSure: Bool) {
    var isSure = true
    for home in homes {
      let found: AnyJob? = home.liveLock.withLock {
        var next = home.firstLive
        var inspected = 0
        while let job = next, inspected < 10_000 {
          if job.seemsRunning, job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == address {
            return job.handle.takeUnretainedValue()
          }
          next = job.pointee.nextLive
          inspected += 1
        }
        isSure = isSure && next == nil
        return nil
      }
      if let found { return (found, true) }
    }
    return (nil, isSure)
  }

  private var address: UnsafeMutableRawPointer { Unmanaged.passUnretained(self).toOpaque() }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The sum of the word `wait`, which each wait changes, and the time of the last wait or yield (`Carrier.giveWay`).
  ///
  /// Until the scheduler reads its clock again, the time changes by less than the 256 that each wait adds to the word.
  /// So each wait and each yield changes the sum. A later yield can repeat the sum of a wait, if it uses up the
  /// switches that are left: then the scheduler reads its clock, and the search for a stall begins anew.
  var stallMark: UInt64 {
    pointee.wait.load(ordering: .relaxed) &+ pointee.waitingSince.load(ordering: .relaxed)
  }

  /// Whether a live job neither waits, nor is ready, nor is still to start, nor runs on its launcher's thread.
  fileprivate var seemsRunning: Bool {
    let kind = pointee.waitKind.load(ordering: .relaxed)
    return pointee.wait.load(ordering: .relaxed) & 0xFF == 0
      && kind != WaitKind.start.rawValue && kind != WaitKind.ready.rawValue
      && !hold.isForeign
  }
}
