import Synchronization

extension Scheduler {
  /// Takes over a job that is switched out on its old scheduler, and the reference that its record holds.
  func takeOver(_ job: JobRef) {
    let old = job.pointee.home
    if !isImmortal { _ = Unmanaged.passRetained(self) }
    // Retained during the transfer: the job may be the last one that kept its old queue alive.
    let oldScheduler = old.takeUnretainedValue()
    oldScheduler.unregister(job)
    register(job, holding: nil)
    job.pointee.move.withLock { job.pointee.scheduler.store(Unmanaged.passUnretained(self), ordering: .releasing) }
    Carrier.makeReady(job)
    unpin()
    if !oldScheduler.isImmortal { old.release() }
  }
}
