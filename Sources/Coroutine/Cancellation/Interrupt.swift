internal import CCoroutine
import Synchronization

// An interrupt asks that somebody look at a job's chain of cancellation frames (Cancellation.swift), and end the job's wait if the
// chain says "cancelled". Two parties handle interrupts: the drain of the scheduler that the job is on, and, where the drain of
// a shared worker does not get to its inbox because a job computes there, the watchdog of the workers, from a thread of its own.
//
// The frames are on the job's stack, so they may be read only while the job is parked and nobody resumes it.
//
//   who looks        what keeps the job parked meanwhile
//   its scheduler    Only its scheduler resumes it, and that is looking. `inspecting` in its flags keeps other workers from taking it.
//   the watchdog     `foreign` in its flags: its scheduler and every other worker drop the job when they pop it, and leave
//                    `deferredWake` behind. The watchdog queues such a job again when it is done (ImmediateStart.swift).
//
// The watchdog takes hold of a job in four steps, with the interrupt in its hands:
//
//   1. `wait` says WAITING, in a word w
//   2. read-modify-write of `flags`: sets `foreign`. It was set already, or somebody is `inspecting`: give up
//   3. compare-and-swap of `wait` from w to w. It fails: give up
//   4. the stack is switched out (cco_is_parked). It is not: give up
//
// To give up is to clear `foreign` as after a look, and to send the interrupt again, which is still marked as pending.
//
// Why nobody resumes the job from 3 on. A waker first claims the wait, a compare-and-swap from w to another word. If the claim
// comes before 3 in the order of that word, 3 fails. If it comes after 3, the waker has acquired what 3 has released, `foreign`
// among it, and so has, through the ready queue or an inbox, the worker that pops the job: it sees `foreign`, or that it has been
// cleared again after the look, and then acquires the look. (To claim the wait the watchdog needs no permission: that is one
// more compare-and-swap from w.)
//
// Why at most one looks. Both read and write `flags` in one operation: the watchdog sets `foreign` and looks for `inspecting`, the
// scheduler adds to `inspecting` and looks for `foreign`. The later of the two sees the earlier one, and gives up or defers.
//
// Why the frames are complete. Step 4 acquires what the job did before it left its stack; the job changes its chain on its own
// turn only. Step 3 rules out that this is an earlier parking: the job begins each wait by a new word, on its own turn.
//
// No request is missed. The flags (of the job and of the frame) are set before the interrupt is sent, and `interruptPending` is
// cleared before the look: what is asked for later sends another one. If the job looks after the flags are set, it sees them.
// If it looked before, then either the scheduler handles the interrupt: the job has begun its wait before that, because both
// happen on one serial execution, so the interrupt finds it waiting. Or the watchdog finds it waiting, and looks; where it does
// not, the interrupt stays for the scheduler. A job that is on another worker by then has the interrupt sent after it.

extension AnyJob {
  /// Asks the job's own scheduler to look at its cancellation.
  ///
  /// Any thread; the caller holds the job.
  func interrupt() {
    let old = record.pointee.flags.bitwiseOr(JobFlags.interruptPending, ordering: .acquiringAndReleasing).oldValue
    guard old & JobFlags.interruptPending == 0, !completion.isSettled else { return }
    // The message holds the job until it is handled.
    _ = Unmanaged.passRetained(self)
    currentScheduler.send(.interrupt(record))
  }

  /// The scheduler that the job is on now, held: it may move, and its old one end, while the caller uses it.
  final var currentScheduler: Scheduler {
    record.pointee.move.withLock { record.pointee.scheduler.load(ordering: .acquiring).takeUnretainedValue() }
  }
}

extension Scheduler {
  /// Handles an interrupt on this scheduler's turn.
  ///
  /// Between two workers the job may be claimed by another waker and taken along (Carrier.sendRemotely), or be rescued from this
  /// worker's inbox (WorkerPool.rescue), while its frames are looked at here. Both sides do a read-modify-write of `flags`:
  /// either this one comes first, and the other sees `inspecting` and leaves the job to this scheduler's inbox; or the other's
  /// comes first, and the claim before it is seen here, so that nobody looks.
  func handleInterrupt(of job: JobRef) {
    let handle = job.handle
    defer { handle.release() }
    _ = job.pointee.flags.bitwiseAnd(~JobFlags.interruptPending, ordering: .acquiringAndReleasing)
    // A job that runs on a foreign turn may be about to begin a wait at this very moment: its starter repeats the interrupt.
    while true {
      if deferIfForeign(job, JobFlags.deferredInterrupt) { return }
      let old = job.pointee.flags.wrappingAdd(JobFlags.oneInspection, ordering: .acquiringAndReleasing).oldValue
      if old & JobFlags.foreign == 0 { break }
      // A watchdog has come first.
      _ = job.pointee.flags.wrappingSubtract(JobFlags.oneInspection, ordering: .acquiringAndReleasing)
    }
    defer { _ = job.pointee.flags.wrappingSubtract(JobFlags.oneInspection, ordering: .acquiringAndReleasing) }
    let word = job.pointee.wait.load(ordering: .acquiring)
    // Read after the word: a job seen waiting is seen with the scheduler that it waits on.
    guard job.pointee.scheduler.load(ordering: .acquiring).toOpaque() == Unmanaged.passUnretained(self).toOpaque()
    else {
      return handle._withUnsafeGuaranteedRef { $0.interrupt() }
    }
    let isRunningHere = Carrier.current?.pointee.job == job
    // Neither parked nor running right here: it will look before it waits.
    guard word & 0xFF == 1 || isRunningHere else { return }
    job.cancelScopes()
    if word & 0xFF == 1, job.cancellation() != nil, job.claim(WaitEpoch(word: word), WakeReason.cancelled) {
      readyQueue.append(job)
    }
  }

  /// Handles an interrupt that was taken out of this scheduler's inbox, in its place; a job whose wait that ends goes on on
  /// `rescuer`, a worker of the same group.
  ///
  /// The watchdog; see the head of this file.
  func handleInterrupt(of job: JobRef, rescuer: Scheduler) {
    guard let epoch = job.holdParked() else { return push(.interrupt(job)) }
    let handle = job.handle
    _ = job.pointee.flags.bitwiseAnd(~JobFlags.interruptPending, ordering: .acquiringAndReleasing)
    job.cancelScopes()
    let isEnded = job.cancellation() != nil && job.claim(epoch, WakeReason.cancelled)
    if isEnded { job.pointee.scheduler.store(Unmanaged.passUnretained(rescuer), ordering: .releasing) }
    handle._withUnsafeGuaranteedRef { $0.leaveForeign() }
    if isEnded { rescuer.push(.job(job)) }
    handle.release()
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether the job waits, as far as a single look can tell.
  var seemsWaiting: Bool { pointee.wait.load(ordering: .relaxed) & 0xFF == 1 }

  /// Keeps a parked job from being resumed until `leaveForeign`; nil: it is not parked, or somebody else has it.
  ///
  /// The watchdog, with an interrupt of the job in its hands, which keeps the job in memory.
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

  /// Whether the wait has not been claimed; whoever claims it afterwards has acquired what the caller did before.
  private func stillWaits(_ word: UInt64) -> Bool {
    pointee.wait.compareExchange(
      expected: word,
      desired: word,
      successOrdering: .acquiringAndReleasing,
      failureOrdering: .relaxed
    ).exchanged
  }
}
