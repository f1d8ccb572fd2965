internal import CCoroutine
internal import CLinux
import Synchronization

// Who keeps a thread. The watchdog asks for the workers of its pool (Watchdog.swift), and QueueStalls.swift for the
// queues of the program.

extension CoroutineRuntime.Stall {
  /// Puts the reports where the kernel finds them; called before the first scheduler is there.
  static func listen() {
    StallReports.report = { $0.reportStall($1, &$2, searching: $3) }
    StallReports.queueDrainBegins = { QueueStalls.begins($0.thread) }
  }
}

extension Scheduler {
  /// Reports the coroutine or the Task that has kept this scheduler's thread to the handler; returns whether it has
  /// done so.
  ///
  /// A scheduler reads its clock only after some jobs, so the time may be that of several. A job is reported only if
  /// it was found there a threshold ago, and has neither waited nor yielded since. For the same reason the search goes
  /// on after a report, four times in a threshold: the next job may stall before the scheduler reads its clock. Called
  /// after each sample of the thread. `homes` are the schedulers in whose lists the job may be.
  fileprivate func reportStall(
    _ busy: BusyWorker,
    _ suspect: inout StallWatch.Suspect?,
    searching homes: () -> [Scheduler]
  ) -> Bool {
    let use = busy.use
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
      suspect = StallWatch.Suspect(id: id, mark: mark, total: use.total)
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
    let stack = job.map { ThreadStack.read(of: busy.thread, activity, since: mark, $0, isOurs: isOurs) } ?? []
    handler(
      CoroutineRuntime.Stall(
        coroutine: job?.summary,
        launchSite: job?.record.label.pointee.launchSite.description,
        isTask: isTask,
        duration: .nanoseconds(Int64(kept)),
        worker: label,
        thread: busy.thread,
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

extension ThreadUse {
  /// The thread's activity for most of the time; nil if it slept in a call that it has left.
  fileprivate var activity: CoroutineRuntime.Stall.Activity? {
    if processor >= asleep { return .computing }
    if call >= 0 { return .systemCall(clinux_call_name(call).map { String(cString: $0) } ?? "system call \(call)") }
    return call == CLINUX_THREAD_RUNS.rawValue ? nil : .asleep
  }
}
