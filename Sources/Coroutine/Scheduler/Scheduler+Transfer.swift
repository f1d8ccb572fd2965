import Synchronization

extension Scheduler {
  /// Takes over a job that has left its old scheduler's stack, and the reference that its record holds.
  func takeOver(_ job: JobRef) {
    let old = job.pointee.home
    if !isImmortal { _ = Unmanaged.passRetained(self) }
    // Held through the hand-over: the job may be the last that kept its old queue alive.
    let oldScheduler = old.takeUnretainedValue()
    oldScheduler.unregister(job)
    register(job, holding: nil)
    job.pointee.move.withLock { job.pointee.scheduler.store(Unmanaged.passUnretained(self), ordering: .releasing) }
    Carrier.makeReady(job)
    unpin()
    if !oldScheduler.isImmortal { old.release() }
  }
}
