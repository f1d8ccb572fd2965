internal import CCoroutine
import Synchronization

// An immediate start: a job's first part runs on the caller's thread, on a nested carrier.
//
// If the caller's thread is draining the job's own scheduler, this is serial with all other work of that scheduler.
// Otherwise the starter takes the job before it runs, and releases it after it is switched out. Only then does its
// scheduler resume it (JobHold.swift).

extension AnyJob {
  final func runImmediately() {
    let outer = Carrier.current
    let home = record.pointee.scheduler.load(ordering: .relaxed)
    let isForeign = outer?.pointee.scheduler?.toOpaque() != home.toOpaque()
    if isForeign { record.hold.take() }
    cco_guard_thread()
    switch StackRunner.make(for: record) {
    case .failure(let error): return AnyJob.fail(record, error)
    case .success(let stack): record.pointee.context = stack
    }
    // Retained: the job may end on this carrier, or on another thread before this function has finished with its
    // record.
    withExtendedLifetime(self) {
      // By the scheduler that this thread drains, which need not be the job's own: what the job starts there in turn
      // is inside the starter as well.
      if let outer, let starter = outer.pointee.job, let drained = outer.pointee.scheduler {
        drained._withUnsafeGuaranteedRef { $0.runStarted(by: starter) { Self.runNested(record, outer) } }
      } else {
        Self.runNested(record, outer)
      }
      if isForeign { record.hold.release() }
    }
  }

  /// Runs a job on a nested carrier, which does no switches between jobs: the job comes back here when it first
  /// suspends or ends.
  private static func runNested(_ job: JobRef, _ outer: UnsafeMutablePointer<Carrier>?) {
    let now = outer?.pointee.now ?? Clock.now
    var carrier = Carrier(scheduler: outer?.pointee.scheduler, readyQueue: outer?.pointee.readyQueue, now: now)
    carrier.followRecorder(of: outer)
    withUnsafeMutablePointer(to: &carrier) { carrier in
      cco_thread().pointee.carrier = UnsafeMutableRawPointer(carrier)
      carrier.pointee.job = job
      SchedulerRegistry.noteStart(on: outer)
      Events.note(.run, job, 1)
      let held = LockCheck.putAside()
      cco_switch(&carrier.pointee.driver, &job.pointee.context.unsafelyUnwrapped.pointee.parked)
      LockCheck.takeBack(held)
      Events.noteReturn(of: job, carrier.pointee.leaving)
      if carrier.pointee.leaving != 0 { Carrier.finishLeaving(carrier) }
      cco_thread().pointee.carrier = UnsafeMutableRawPointer(outer)
    }
  }
}
