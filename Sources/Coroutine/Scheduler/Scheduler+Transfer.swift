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

extension Carrier {
  /// Suspends the running job, and continues it on `destination`; `anchor` is that scheduler's, if the caller has it.
  static func transfer(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    to destination: Scheduler,
    holding anchor: Anchor?
  ) {
    destination.pin(anchor)
    job.moveDeadlines(to: destination)
    job.pointee.destination = Unmanaged.passUnretained(destination)
    job.pointee.after = .transfer
    giveWay(carrier, job)
  }
}
