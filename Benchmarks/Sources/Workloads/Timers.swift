import Coroutine
import Driving
import Harness

// Sleepers cost processor time to launch, to queue and to wake; the time that passes says nothing here.

func addTimers(to suite: inout Suite) {
  suite.row("timers_100k", 100_000, quick: 20_000, clock: .processor) { count in
    let early = try onQueue {
      let jobs = (0..<count).map { index in co_launch { try isEarly(after: 1 + index % 1000) } }
      return try jobs.reduce(0) { try $0 + $1.join() }
    }
    expect(early, equals: 0, "sleepers that woke too early")
  }
}

/// Sleeps; 1 if that ended before its time.
///
/// One in sixteen looks at the clock for it, which costs as much as some of what is measured.
private func isEarly(after milliseconds: Int) throws -> Int {
  guard milliseconds & 15 == 0 else {
    try co_delay(.milliseconds(milliseconds))
    return 0
  }
  let start = Clock.wall.now
  try co_delay(.milliseconds(milliseconds))
  return Clock.wall.now - start < UInt64(milliseconds) * 1_000_000 ? 1 : 0
}
