import Synchronization

// What the shipped WorkerPool.swift names.

struct StealBackoff {
  /// So many times stealing does not pay.
  var refusals = 0

  struct Moment {
    static var now: Moment { Moment() }
  }
  mutating func took(_ count: Int, at now: Moment) {}
  mutating func foundOnlyKept() {}
  mutating func pays(at now: Moment) -> Bool {
    if refusals == 0 { return true }
    refusals -= 1
    return false
  }
}

/// No model has handlers or timers: what due timers add to the inbox, and the foreign code of handlers, are left out.
final class HandlerQueue {}

extension Scheduler {
  var clock: UInt64 { 0 }
  var nextTimer: NoTimer { NoTimer() }
  func fireTimers(_ now: UInt64, ifFree: Bool = false) {}
  var timerWakeup: NoTimer { NoTimer() }
  func sendTimerWakeup() {}
  var hasReadyHandlers: Bool { false }
  func runHandlers() -> (count: Int, isReady: Bool) { (0, false) }
  func submitWhatIsLeft() {}
  var lacksThread: Bool { false }
}

struct NoTimer {
  var item: UnsafeMutablePointer<WorkItem>? { nil }
  func load(ordering: AtomicLoadOrdering) -> UInt64 { .max }
}

enum Processors {
  static var chosen: Int { 1 }
}

enum WorkerHost {
  static func makeScheduler(_ label: String, _ pool: WorkerPool, _ index: Int) -> Scheduler {
    Scheduler(pool: pool, index: index)
  }
}

/// Where the watchdog looks, it is a virtual thread.
final class WatchdogThread {}

extension WorkerPool {
  func startWatching() { workers[0].watchdogStarts() }
}

struct WatchedWorker {}
