import CProbe
import Coroutine
import Dispatch
import Glibc
import Harness

// A million coroutines that wait, every stack of them guarded: what each holds in memory and what it took to get there. A
// process of its own for each round, because a stack that has been touched once is cheaper ever after.

func addParked(to suite: inout Suite) {
  suite.figures(
    [
      Figure("parked_1M_bytes", unit: "bytes"), Figure("parked_1M_start"),
      Figure("parked_1M_page_tables", unit: "bytes"), Figure("parked_1M_wake_and_end"),
    ], 1_000_000, quick: 100_000, fresh: true
  ) { count in
    // What a coroutine may take at most, and a fifth for the rest of the machine.
    guard Memory.available > count * 6_000 else {
      complain("parked_1M: skipped, because \(count) coroutines need \(count * 6_000 >> 20) MiB of free memory")
      return []
    }
    return try measureParked(count)
  }
}

private func measureParked(_ count: Int) throws -> [Double] {
  let (started, resumed) = (Counter(), Counter())
  let before = Memory.current
  let figures = try onQueue {
    let gate = Promise<Int>()
    let start = Clock.wall.now
    for _ in 0..<count {
      co_launch {
        _ = started.increment()
        if try co_await(gate) == 7 { _ = resumed.increment() }
      }
    }
    while started.value < count { try co_yield() }
    let parked = Clock.wall.now
    let now = Memory.current
    let stacks = cprobe_count_stacks()
    expect(stacks.live >= UInt64(count), "every parked coroutine has a stack: \(stacks.live) for \(count)")
    expect(resumed.value, equals: 0, "coroutines that went on too early")

    let opened = Clock.wall.now
    gate.fulfill(7)
    while resumed.value < count { try co_yield() }
    let ended = Clock.wall.now
    return [
      Double(now.resident - before.resident), Double(parked - start), Double(now.pageTables - before.pageTables),
      Double(ended - opened),
    ]
  }
  expect(started.finish(), equals: count, "coroutines that started")
  expect(resumed.finish(), equals: count, "coroutines that went on, each once")
  expectMemoryBack(before, grown: Int(figures[0]))
  return figures.map { $0 / Double(count) }
}

/// The runtime gives the stacks' memory back by itself once nothing runs. That is not instant, so it has ten seconds; what
/// the C library keeps of the small blocks is its own affair.
private func expectMemoryBack(_ before: Memory, grown: Int) {
  var left = grown
  for _ in 0..<1000 {
    cprobe_return_freed()
    left = Memory.current.resident - before.resident
    if left < grown / 10 { return }
    usleep(10_000)
  }
  let stacks = cprobe_count_stacks()
  fail(
    "memory was not given back: \(left >> 20) of \(grown >> 20) MiB are still there, with \(stacks.live) live and "
      + "\(stacks.dirty) pooled stacks that hold memory")
}
