internal import CCoroutine
import Synchronization

// An immediate start: a job's first part runs on the caller's thread, on a nested carrier.
//
// If the caller's thread is draining the job's own scheduler, this is serial with everything else on that scheduler,
// and nothing more is needed. Otherwise the job is *foreign*: its waits are published while it runs outside its
// scheduler, so a waker may queue it, and its scheduler pop it, before its stack is switched out (the case that
// Waiter.swift leaves open). Two bits of `flags`, changed by atomic read-modify-writes only, decide which side resumes
// it:
//
//   its scheduler, having popped it     the starter, after the job is switched out
//   sets `deferredWake`                 clears `foreign`
//   `foreign` was still set: drops it   `deferredWake` was set: queues it again
//   `foreign` was clear: resumes it
//
// The two operations are ordered by the word, so exactly one of them sees the other's bit: the job is resumed once, and
// only after the starter has left it. Interrupts are deferred in the same way by `deferredInterrupt`. The watchdog
// keeps a parked job from being resumed by the same two bits (Interrupt.swift).

extension AnyJob {
  final func runImmediately() {
    let outer = Carrier.current
    let home = record.pointee.scheduler.load(ordering: .relaxed)
    if !cco_uses(CCO_USES_QUEUES), home._withUnsafeGuaranteedRef({ $0.refusesJobs }) {
      return AnyJob.fail(record, CoroutineError.afterFork)
    }
    let isForeign = outer?.pointee.scheduler?.toOpaque() != home.toOpaque()
    if isForeign { _ = record.pointee.flags.bitwiseOr(JobFlags.foreign, ordering: .relaxed) }
    cco_guard_thread()
    switch StackRunner.make(record.pointee.stackBytes) {
    case .failure(let error): return AnyJob.fail(record, error)
    case .success(let stack): record.pointee.context = stack
    }
    // Retained: the job may end on this carrier, or on another thread before this function has finished with its
    // record.
    withExtendedLifetime(self) {
      if let outer, let starter = outer.pointee.job, !isForeign {
        home._withUnsafeGuaranteedRef { $0.runStarted(by: starter) { Self.runNested(record, outer) } }
      } else {
        Self.runNested(record, outer)
        if isForeign { leaveForeign() }
      }
    }
  }

  /// Runs a job on a nested carrier, which does no switches between jobs: the job comes back here when it first
  /// suspends or ends.
  private static func runNested(_ job: JobRef, _ outer: UnsafeMutablePointer<Carrier>?) {
    let now = outer?.pointee.now ?? Clock.now
    var carrier = Carrier(scheduler: outer?.pointee.scheduler, readyQueue: outer?.pointee.readyQueue, now: now)
    withUnsafeMutablePointer(to: &carrier) { carrier in
      cco_thread().pointee.carrier = UnsafeMutableRawPointer(carrier)
      carrier.pointee.job = job
      let held = LockCheck.putAside()
      cco_switch(&carrier.pointee.driver, &job.pointee.context.unsafelyUnwrapped.pointee.parked)
      LockCheck.takeBack(held)
      if carrier.pointee.leaving != 0 { Carrier.finishLeaving(carrier) }
      cco_thread().pointee.carrier = UnsafeMutableRawPointer(outer)
    }
  }

  /// Gives a foreign job back to its scheduler, and does what that scheduler has deferred meanwhile.
  func leaveForeign() {
    let deferred = JobFlags.deferredWake | JobFlags.deferredInterrupt
    let old = record.pointee.flags.bitwiseAnd(~(JobFlags.foreign | deferred), ordering: .acquiringAndReleasing).oldValue
    if old & JobFlags.deferredWake != 0 { Carrier.makeReady(record) }
    if old & JobFlags.deferredInterrupt != 0 { interrupt() }
  }
}

extension Scheduler {
  /// Sets `bit` and returns true if the job is foreign; the holder of the job then does the deferred work.
  ///
  /// One compare-and-swap sets the bit only while `foreign` is set: a bit that is set and cleared again could be seen,
  /// and acted upon, by a watchdog that takes hold of the job in between.
  func deferIfForeign(_ job: JobRef, _ bit: UInt32) -> Bool {
    var flags = job.pointee.flags.load(ordering: .acquiring)
    while flags & JobFlags.foreign != 0 {
      let (isDeferred, seen) = job.pointee.flags.compareExchange(
        expected: flags,
        desired: flags | bit,
        successOrdering: .acquiringAndReleasing,
        failureOrdering: .acquiring
      )
      if isDeferred { return true }
      flags = seen
    }
    return false
  }
}
