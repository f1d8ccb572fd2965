import Coroutine
import Dispatch
import Driving
import Harness

// Four coroutines that want one mutex all the time.

func addLocks(to suite: inout Suite) {
  // The peers' workload: four contenders that hold the lock for an instant, each again and again.
  suite.row("mutex_4", 4_000_000) { count in
    let held = try onQueue { try contend(count) }
    expect(held, equals: count / 4 * 4, "times the lock was held")
  }
  // The same on every core that there is: who waits, waits for another thread.
  suite.row("mutex_4_parallel", 4_000_000) { count in
    let held = try co_launch { try contend(count) }.blockingWait()
    expect(held, equals: count / 4 * 4, "times the lock was held")
  }
  // The holder lets the others run, so that each lock is handed over to one that waits for it: a park and a wake each
  // time.
  suite.row("mutex_4_handed_over", 2_000_000) { count in
    let held = try onQueue { try contend(count, whileHeld: { try co_yield() }) }
    expect(held, equals: count / 4 * 4, "times the lock was held")
  }
}

private func contend(_ count: Int, whileHeld: (() throws -> Void)? = nil) throws -> Int {
  let lock = FairMutex()
  let counter = Counter()
  nonisolated(unsafe) let whileHeld = whileHeld  // Sound because it captures nothing.
  try co_scope { scope in
    for _ in 0..<4 {
      scope.launch {
        for _ in 0..<(count / 4) {
          try lock.lock()
          _ = counter.increment()
          try whileHeld?()
          lock.unlock()
        }
      }
    }
  }
  return counter.finish()
}
