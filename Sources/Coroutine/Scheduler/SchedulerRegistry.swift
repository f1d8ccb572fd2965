internal import CCoroutine

/// All schedulers of the process.
enum SchedulerRegistry {
  private static let lock = ThreadLock()
  // Sound because every access is under `lock`. Unretained: a scheduler removes itself in its deinit.
  nonisolated(unsafe) private static var all: [ObjectIdentifier: Unmanaged<Scheduler>] = [:]

  private static let environment: Void = cco_apply_environment()

  static func add(_ scheduler: Scheduler) {
    _ = environment
    lock.withLock { all[ObjectIdentifier(scheduler)] = Unmanaged.passUnretained(scheduler) }
  }

  static func remove(_ scheduler: Scheduler) {
    lock.withLock { _ = all.removeValue(forKey: ObjectIdentifier(scheduler)) }
  }

  /// Calls `body` with every scheduler.
  ///
  /// Outside of the registry's lock, with a reference of its own: a call of a method may retain and release its object.
  /// If the other owners release it in between, that release is the last one, and the deinit takes the lock.
  static func visitAll(_ body: (Scheduler) -> Void) {
    let schedulers: [Scheduler] = lock.withLock {
      all.values.compactMap { cco_try_retain($0.toOpaque()) ? $0.takeRetainedValue() : nil }
    }
    schedulers.forEach(body)
  }
}
