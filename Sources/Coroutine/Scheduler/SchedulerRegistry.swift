internal import CCoroutine

/// All schedulers of the process.
enum SchedulerRegistry {
  private static let lock = ThreadLock()
  // Sound because every access is under `lock`. Unretained: a scheduler removes itself in its deinit.
  nonisolated(unsafe) private static var all: [ObjectIdentifier: Entry] = [:]

  /// A scheduler, and its counters, which are in memory as long as the entry exists.
  private struct Entry {
    let scheduler: Unmanaged<Scheduler>
    let counters: CounterWords
  }

  /// The counters of the schedulers that have ended, and of what belongs to no scheduler.
  static let ended = CounterWords()

  private static let environment: Void = cco_apply_environment()

  static func add(_ scheduler: Scheduler) {
    _ = environment
    let entry = Entry(scheduler: .passUnretained(scheduler), counters: scheduler.counters)
    lock.withLock { all[ObjectIdentifier(scheduler)] = entry }
  }

  static func remove(_ scheduler: Scheduler) {
    lock.withLock {
      guard all.removeValue(forKey: ObjectIdentifier(scheduler)) != nil else { return }
      scheduler.counters.add(to: ended)
    }
  }

  /// Returns the sum of each word of all schedulers (Counters.swift).
  static func totals() -> [UInt64] {
    var sums = [UInt64](repeating: 0, count: CounterWords.count)
    lock.withLock {
      // The ends before the launches.
      for range in [2..<CounterWords.count, 1..<2, 0..<1] {
        for entry in all.values { entry.counters.add(range, to: &sums) }
        ended.add(range, to: &sums)
      }
    }
    return sums
  }

  /// Counts the switch of an immediate start to its job; `outer` is the calling thread's carrier.
  static func noteStart(on outer: UnsafeMutablePointer<Carrier>?) {
    // The calling thread is in the drain of the outer carrier's scheduler, so it writes the word.
    if let scheduler = outer?.pointee.scheduler {
      scheduler._withUnsafeGuaranteedRef { $0.counters.add(to: .switches) }
    } else {
      ended.addShared(to: .switches)
    }
  }

  /// Calls `body` with every scheduler.
  ///
  /// Outside of the registry's lock, with a reference of its own: a call of a method may retain and release its object.
  /// If the other owners release it in between, that release is the last one, and the deinit takes the lock.
  static func visitAll(_ body: (Scheduler) -> Void) {
    let schedulers: [Scheduler] = lock.withLock {
      all.values.compactMap {
        cco_try_retain($0.scheduler.toOpaque()) ? $0.scheduler.takeRetainedValue() : nil
      }
    }
    schedulers.forEach(body)
  }
}
