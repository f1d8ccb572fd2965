// What the shipped WorkerPool.swift and WorkerState.swift name.

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

/// No model has handlers.
final class HandlerQueue {}

enum Processors {
  static var workers: Int { 1 }
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

  struct Seen {}
}
