/// A worker of a pool, for a coroutine that must begin there.
package struct CoroutineWorker: LaunchTarget {
  private let scheduler: Scheduler

  /// The workers among which the calling code's work is shared; empty if it does not run on a worker.
  package static var ofCaller: [CoroutineWorker] {
    WorkerPool.ofCaller?.workers.map { CoroutineWorker(scheduler: $0) } ?? []
  }

  package var _destination: _LaunchDestination { _LaunchDestination(scheduler: scheduler, anchor: nil) }
}
