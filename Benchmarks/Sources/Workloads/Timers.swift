import Coroutine
import Driving
import Harness

// Sleepers cost processor time to launch, to queue and to wake; the time that passes says nothing here.

func addTimers(to suite: inout Suite) {
  suite.row("timers_100k", 100_000, quick: 20_000, clock: .processor) { count in
    // As the peers do it: a wait group counts the ends.
    let early = Counter()
    try onQueue {
      let group = WaitGroup()
      group.add(count)
      for index in 0..<count {
        co_launch {
          if try isEarly(after: 1 + index % 1000) { _ = early.increment() }
          group.done()
        }
      }
      try group.wait()
    }
    expect(early.finish(), equals: 0, "sleepers that woke too early")
  }
}

/// Sleeps; whether that ended before its time.
///
/// One in sixteen looks at the clock for it, which costs as much as some of what is measured.
private func isEarly(after milliseconds: Int) throws -> Bool {
  guard milliseconds & 15 == 0 else {
    try co_delay(.milliseconds(milliseconds))
    return false
  }
  let start = Clock.wall.now
  try co_delay(.milliseconds(milliseconds))
  return Clock.wall.now - start < UInt64(milliseconds) * 1_000_000
}
