/// All schedulers of the process.
enum SchedulerRegistry {
  private static let lock = ThreadLock()
  // Sound because every access is under `lock`. Unretained: a scheduler removes itself in its deinit.
  nonisolated(unsafe) private static var all: [ObjectIdentifier: Unmanaged<Scheduler>] = [:]

  static func add(_ scheduler: Scheduler) {
    lock.withLock { all[ObjectIdentifier(scheduler)] = Unmanaged.passUnretained(scheduler) }
  }

  static func remove(_ scheduler: Scheduler) {
    lock.withLock { _ = all.removeValue(forKey: ObjectIdentifier(scheduler)) }
  }

  /// Calls `body` with every scheduler.
  ///
  /// Called under the registry's lock, so that no scheduler is released meanwhile: `body` only reads.
  static func visitAll(_ body: (Scheduler) -> Void) {
    lock.withLock { for scheduler in all.values { scheduler._withUnsafeGuaranteedRef(body) } }
  }
}
