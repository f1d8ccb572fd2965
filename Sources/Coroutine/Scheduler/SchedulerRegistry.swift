internal import CCoroutine
import Dispatch
import Synchronization

// Publication of a queue's scheduler
//  1. The scheduler is complete before it is published, the mark on its queue included: whoever finds a scheduler by its queue
//     may ask `isCurrentQueue` at once. A queue that led to an unmarked scheduler would let `Job.wait` block the job's queue
//     instead of throwing `wouldDeadlock`.
//  2. Publishing is `setSpecific`, finding is `getSpecific`. Dispatch orders the two by a lock of its own, which ThreadSanitizer
//     does not see: `cco_publish` and `cco_observe` tell it. In other builds they do nothing.
//  3. Of two threads that first use one queue, one creates its scheduler, under `creation`; the other finds it there.

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
    if let found = observed(queue.getSpecific(key: key)) { return found }
    return creation.withLock {
      if let found = queue.getSpecific(key: key) { return found }
      let made = Scheduler(queue: queue, workerPool: nil, immortal: false)
      publish(made, for: queue)
      return made
    }
  }

  /// The scheduler of the queue that the calling block runs on, if coroutines have ever run there.
  static var current: Scheduler? { observed(DispatchQueue.getSpecific(key: key)) }

  /// Makes `queue` lead to its scheduler.
  ///
  /// The last step of making one.
  static func publish(_ scheduler: Scheduler, for queue: DispatchQueue) {
    scheduler.markQueue(queue)
    cco_publish(Unmanaged.passUnretained(scheduler).toOpaque())
    queue.setSpecific(key: key, value: scheduler)
  }

  private static func observed(_ found: Scheduler?) -> Scheduler? {
    if let found { cco_observe(Unmanaged.passUnretained(found).toOpaque()) }
    return found
  }

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
}
