// What the shipped WorkerPool.swift names.

struct StealBackoff {
  /// So many times stealing does not pay.
  var refusals = 0

  struct Moment {
    static var now: Moment { Moment() }
  }
  mutating func took(_ count: Int, at now: Moment) {}
  mutating func pays(at now: Moment) -> Bool {
    if refusals == 0 { return true }
    refusals -= 1
    return false
  }
}

enum Processors {
  static var workers: Int { 1 }
}

enum WorkerHost {
  static func makeScheduler(_ label: String, _ pool: WorkerPool, _ index: Int) -> Scheduler {
    Scheduler(pool: pool, index: index)
  }
}

/// Dispatch has no part in the models: where the watchdog looks, it is a virtual thread.
struct DispatchQueue {
  init(label: String) {}
}

protocol DispatchSourceTimer {
  func setEventHandler(_ handler: () -> Void)
  func schedule(deadline: DispatchTime)
  func activate()
}

enum DispatchTime {
  case distantFuture
}

enum DispatchSource: DispatchSourceTimer {
  case timer
  static func makeTimerSource(queue: DispatchQueue) -> any DispatchSourceTimer { timer }
  func setEventHandler(_ handler: () -> Void) {}
  func schedule(deadline: DispatchTime) {}
  func activate() {}
}

extension WorkerPool {
  func startWatching() { workers[0].watchdogStarts() }
  func watch() {}

  struct Seen {}
}
