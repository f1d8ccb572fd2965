import Dispatch
import Synchronization

/// Finds the scheduler of a queue, and all schedulers.
enum SchedulerRegistry {
  private static let key = DispatchSpecificKey<Scheduler>()
  private static let lock = SpinLock()
  // Sound because every access is under `lock`. Unowned: a scheduler leaves at its deinit.
  nonisolated(unsafe) private static var all: [ObjectIdentifier: Unmanaged<Scheduler>] = [:]
  private static let creation = SpinLock()

  /// The scheduler of `queue`, made at the first use.
  ///
  /// The queue owns it.
  static func scheduler(for queue: DispatchQueue) -> Scheduler {
    if let found = queue.getSpecific(key: key) { return found }
    return creation.withLock {
      if let found = queue.getSpecific(key: key) { return found }
      let made = Scheduler(queue: queue, group: nil, immortal: false)
      queue.setSpecific(key: key, value: made)
      made.markQueue(queue)
      return made
    }
  }

  /// The scheduler of the queue that the calling block runs on, if coroutines have ever run there.
  static var current: Scheduler? { DispatchQueue.getSpecific(key: key) }

  static func add(_ scheduler: Scheduler) {
    lock.withLock { all[ObjectIdentifier(scheduler)] = Unmanaged.passUnretained(scheduler) }
  }

  static func remove(_ scheduler: Scheduler) {
    lock.withLock { _ = all.removeValue(forKey: ObjectIdentifier(scheduler)) }
  }

  /// Calls `body` with every scheduler.
  ///
  /// Under the registry's lock, so that none goes away meanwhile: `body` only looks.
  static func visitAll(_ body: (Scheduler) -> Void) {
    lock.withLock { for scheduler in all.values { scheduler._withUnsafeGuaranteedRef(body) } }
  }

  static func adopt(_ scheduler: Scheduler, for queue: DispatchQueue) {
    queue.setSpecific(key: key, value: scheduler)
    scheduler.markQueue(queue)
  }
}
