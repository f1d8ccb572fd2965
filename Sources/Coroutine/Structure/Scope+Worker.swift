import Synchronization

extension Scope {
  /// Launches a child on a worker of the caller's pool, `index` modulo their number; on the caller's scheduler if that
  /// is no worker, or `index` is nil.
  package func launch<Success: Sendable>(
    name: String,
    onWorker index: Int?,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Success
  ) -> Job<Success> {
    var scheduler = Launch.scheduler(for: nil)
    if let index, let workers = CoroutineWorkers.pool?.workers {
      // Workers live for ever, so there is no reference to give back.
      scheduler = workers[index % workers.count].forRecord()
    }
    let job = Job(
      scheduler: scheduler,
      name: name,
      stack: .standard,
      launchSite: LaunchSite(file: file, line: line),
      body: body
    )
    launch(job, on: nil)
    return job
  }
}

/// The workers among which the calling coroutine's work is shared.
package enum CoroutineWorkers {
  static var pool: WorkerPool? { WorkerPool.ofCaller }

  /// Their number; 1 if the calling code does not run on a worker.
  package static var ofCaller: Int { pool?.workers.count ?? 1 }
}
