internal import CCoroutine
import Synchronization

// An interrupt requests an inspection of a job's chain of cancellation frames (Cancellation.swift); if the chain is
// cancelled, the inspection ends the job's wait. Two parties handle interrupts: the drain of the job's scheduler, and,
// if the drain of a shared worker does not reach its inbox because a job computes there, the watchdog of the workers,
// on a thread of its own.
//
// The frames are on the job's stack, so they may be read only while the job is parked and cannot be resumed.
//
//   inspector        what keeps the job parked meanwhile
//   its scheduler    Only its scheduler resumes it, and that is inspecting. `inspecting` in its flags keeps other
//                    workers from taking it.
//   the watchdog     `foreign` in its flags: its scheduler and every other worker drop the job when they pop it, and
//                    set `deferredWake`. The watchdog queues such a job again when it is done (ImmediateStart.swift).
//
// The watchdog takes hold of a job in four steps, while it owns the interrupt:
//
//   1. `wait` says WAITING, in a word w
//   2. read-modify-write of `flags`: sets `foreign`. If it was set already, or `inspecting` is not zero: give up
//   3. compare-and-swap of `wait` from w to w. If it fails: give up
//   4. the stack is switched out (cco_is_parked). If it is not: give up
//
// To give up is to clear `foreign` as after an inspection, and to send the interrupt again, which is still marked as
// pending.
//
// Why the job is not resumed from step 3 on. A waker first claims the wait, by a compare-and-swap from w to another
// word. If the claim comes before 3 in the order of that word, 3 fails. If it comes after 3, the waker has acquired
// what 3 has released, including `foreign`, and so has, through the ready queue or an inbox, the worker that pops the
// job: it sees `foreign`, or sees that it was cleared again after the inspection, and then acquires the inspection. (To
// claim the wait the watchdog needs no permission: that is one more compare-and-swap from w.)
//
// Why at most one party inspects. Both read and write `flags` in one operation: the watchdog sets `foreign` and checks
// `inspecting`, the scheduler adds to `inspecting` and checks `foreign`. The later of the two sees the earlier one, and
// gives up or defers.
//
// Why the frames are complete. Step 4 acquires what the job did before it left its stack; the job changes its chain on
// its own carrier only. Step 3 rules out that this is an earlier parking: the job begins each wait by a new word, on
// its own carrier.
//
// Why no request is missed. The flags (of the job and of the frame) are set before the interrupt is sent, and
// `interruptPending` is cleared before the inspection: a later request sends another interrupt. If the job checks after
// the flags are set, it sees them: it throws, or inside a shield passes the cancellation on to the scopes outside
// (`cancellation()`). If it checked before, there are two cases. The scheduler handles the interrupt: the
// job has begun its wait before that, because both happen on one serial execution, so the interrupt finds it waiting.
// Or the watchdog finds it waiting, and inspects; if it does not, the interrupt stays for the scheduler. If the job is
// on another worker by then, the interrupt is sent after it.
//
// A job may leave a queue that is blocked (SwitchEntry.swift), with its interrupt in the inbox of that queue, and an
// inbox links a record once. Such an interrupt is marked as stray. A later request then sends work that inspects the
// job to the scheduler where it is. When the queue comes to the stray one, it clears both marks, and sends an interrupt
// after the job.

extension AnyJob {
  /// Asks the job's own scheduler to inspect its cancellation.
  ///
  /// Any thread; the caller holds the job.
  func interrupt() {
    let old = record.pointee.flags.bitwiseOr(JobFlags.interruptPending, ordering: .acquiringAndReleasing).oldValue
    // A dropped job has settled, and may still release its captures, whose code may wait.
    guard !completion.isSettled || record.isDropped else { return }
    if old & JobFlags.interruptPending == 0 {
      // The message holds the job until it is handled.
      _ = Unmanaged.passRetained(self)
      currentScheduler.send(.interrupt(record))
    } else if old & JobFlags.strayInterrupt != 0 {
      interruptPastStray()
    }
  }

  /// The current scheduler of the job, retained: the job may move, and its old scheduler end, while the caller uses it.
  final var currentScheduler: Scheduler {
    record.pointee.move.withLock { record.pointee.scheduler.load(ordering: .acquiring).takeUnretainedValue() }
  }
}

extension Scheduler {
  /// Handles an interrupt on this scheduler.
  ///
  /// While the frames are inspected here, another waker may claim the job and move it to another worker
  /// (Carrier.sendRemotely), or it may be rescued from this worker's inbox (WorkerPool.rescue). Both sides do a
  /// read-modify-write of `flags`: either this one comes first, and the other sees `inspecting` and leaves the job to
  /// this scheduler's inbox; or the other's comes first, and the claim before it is seen here, so that no inspection
  /// happens.
  func handleInterrupt(of job: JobRef) {
    let handle = job.handle
    defer { handle.release() }
    job.takeInterrupt()
    inspect(job)
  }

  /// Inspects the job's cancellation on this scheduler; the caller holds the job.
  func inspect(_ job: JobRef) {
    guard beginInspection(of: job) else { return }
    let word = job.pointee.wait.load(ordering: .acquiring)
    // Read after the word: a job that is seen waiting is seen with the scheduler that it waits on.
    guard job.pointee.scheduler.load(ordering: .acquiring).toOpaque() == Unmanaged.passUnretained(self).toOpaque()
    else {
      job.endInspection()
      return job.handle._withUnsafeGuaranteedRef { $0.interrupt() }
    }
    let isWaiting = word & 0xFF == 1
    // Neither parked nor running here: it will check before it waits.
    let scopes = isWaiting || Carrier.current?.pointee.job == job ? job.scopesToCancel() : []
    let isEnded = isWaiting && job.isCancellationVisible && job.claim(WaitEpoch(word: word), WakeReason.cancelled)
    job.endInspection()
    // The frames are not used any more: cancelling a scope whose children have not begun ends the wait for them, and
    // another worker may then run the job.
    for scope in scopes { scope.cancel() }
    if isEnded { readyQueue.append(job) }
  }

  /// Counts an inspection of the job's frames; returns false if the holder of the job repeats the interrupt.
  private func beginInspection(of job: JobRef) -> Bool {
    // A job that runs on a foreign carrier may be about to begin a wait at this moment: its starter repeats the
    // interrupt.
    while true {
      if deferIfForeign(job, JobFlags.deferredInterrupt) { return false }
      let old = job.pointee.flags.wrappingAdd(JobFlags.oneInspection, ordering: .acquiringAndReleasing).oldValue
      if old & JobFlags.foreign == 0 { return true }
      // A watchdog came first.
      job.endInspection()
    }
  }

  /// Handles an interrupt that was taken out of this scheduler's inbox, in this scheduler's place.
  ///
  /// If that ends a job's wait, the job continues on `rescuer`, a worker of the same pool; on its own scheduler, if it
  /// keeps its thread, or if it has moved elsewhere since the interrupt was sent, to a queue for instance. Called by
  /// the watchdog; see the head of this file.
  func handleInterrupt(of job: JobRef, rescuer: Scheduler) {
    guard let epoch = job.holdParked() else { return push(.interrupt(job)) }
    let handle = job.handle
    job.takeInterrupt()
    job.cancelScopes()
    let isEnded = job.isCancellationVisible && job.claim(epoch, WakeReason.cancelled)
    var next = job.pointee.scheduler.load(ordering: .relaxed)
    if isEnded, next.toOpaque() == Unmanaged.passUnretained(self).toOpaque(), !job.keepsThread {
      next = .passUnretained(rescuer)
      job.pointee.scheduler.store(next, ordering: .releasing)
    }
    handle._withUnsafeGuaranteedRef { $0.leaveForeign() }
    if isEnded { next._withUnsafeGuaranteedRef { $0.push(.job(job)) } }
    handle.release()
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Notes that the interrupt was taken out of its inbox: the next request sends another one.
  fileprivate func takeInterrupt() {
    let bits = JobFlags.interruptPending | JobFlags.strayInterrupt
    _ = pointee.flags.bitwiseAnd(~bits, ordering: .acquiringAndReleasing)
  }

  /// Notes that the job has left the scheduler whose inbox has its interrupt, if there is one.
  ///
  /// Called by the job's new scheduler, before the job runs there. A request that came before has its flags set, which
  /// the job sees at its next wait.
  func leaveInterrupt() {
    var flags = pointee.flags.load(ordering: .relaxed)
    while flags & JobFlags.interruptPending != 0 {
      let (isNoted, seen) = pointee.flags.compareExchange(
        expected: flags,
        desired: flags | JobFlags.strayInterrupt,
        ordering: .acquiringAndReleasing
      )
      if isNoted { return }
      flags = seen
    }
  }

  /// Ends what `beginInspection` has begun.
  fileprivate func endInspection() {
    _ = pointee.flags.wrappingSubtract(JobFlags.oneInspection, ordering: .acquiringAndReleasing)
  }

  /// Whether the job waits, according to a single relaxed load.
  var seemsWaiting: Bool { pointee.wait.load(ordering: .relaxed) & 0xFF == 1 }

  /// Keeps a parked job from being resumed until `leaveForeign`; returns nil if it is not parked, or held by another
  /// thread.
  ///
  /// Called by the watchdog, which owns an interrupt of the job; the interrupt keeps the job in memory.
  fileprivate func holdParked() -> WaitEpoch? {
    let word = pointee.wait.load(ordering: .acquiring)
    guard word & 0xFF == 1 else { return nil }
    let old = pointee.flags.bitwiseOr(JobFlags.foreign, ordering: .acquiringAndReleasing).oldValue
    guard old & JobFlags.foreign == 0 else { return nil }
    if old & JobFlags.inspecting == 0, stillWaits(word), let context = pointee.context,
      cco_is_parked(&context.pointee.parked)
    {
      return WaitEpoch(word: word)
    }
    handle._withUnsafeGuaranteedRef { $0.leaveForeign() }
    return nil
  }

  /// Whether the wait has not been claimed; a thread that claims it afterwards has acquired what the caller did before.
  private func stillWaits(_ word: UInt64) -> Bool {
    pointee.wait.compareExchange(
      expected: word,
      desired: word,
      successOrdering: .acquiringAndReleasing,
      failureOrdering: .relaxed
    ).exchanged
  }
}
