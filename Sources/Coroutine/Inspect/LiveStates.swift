import Synchronization

/// The states of the live coroutines, counted in one walk.
///
/// The walk holds a scheduler's live lock for some coroutines at a time, as the list of a dump does (LiveJobs.swift).
/// It retains nothing: a job in the list is in memory as long as the lock is held.
struct LiveStates {
  var ready = 0
  var running = 0
  /// The number of waiting coroutines by `WaitKind`.
  private var waiting = [Int](repeating: 0, count: 32)

  var live: Int { waiting.reduce(ready + running, +) }

  /// The waiting coroutines by the kind of their wait.
  var waitingByKind: [String: Int] {
    var named: [String: Int] = [:]
    for (number, count) in waiting.enumerated() where count > 0 {
      named[WaitKind(rawValue: UInt8(number))?.name ?? "unknown"] = count
    }
    return named
  }

  private mutating func add(_ job: JobRef) {
    let word = job.pointee.wait.load(ordering: .relaxed)
    let kind = job.pointee.waitKind.load(ordering: .relaxed)
    if word & 0xFF == 1 {
      waiting[Int(kind & 31)] += 1
    } else if word & 0xFF != 0 || kind == WaitKind.start.rawValue || kind == WaitKind.ready.rawValue {
      ready += 1
    } else {
      running += 1
    }
  }

  /// Counts the live coroutines of the process.
  static func now() -> LiveStates {
    var states = LiveStates()
    LiveJobs.listing.withLock { SchedulerRegistry.visitAll { $0.visitLiveJobs { states.add($0) } } }
    return states
  }
}
