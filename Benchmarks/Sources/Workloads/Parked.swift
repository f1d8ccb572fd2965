import CProbe
import Coroutine
import Dispatch
import Glibc
import Harness
import Synchronization

// A million coroutines that wait, every stack of them guarded: what each holds in memory and what it took to get
// there. A process of its own for each round, because a stack that has been touched once is cheaper ever after.

func addParked(to suite: inout Suite) {
  suite.figures(
    [
      Figure("parked_1M_bytes", unit: "bytes"), Figure("parked_1M_start"),
      Figure("parked_1M_page_tables", unit: "bytes"), Figure("parked_1M_wake_and_end"),
    ],
    1_000_000,
    quick: 100_000,
    fresh: true
  ) { count in
    // What a coroutine may take at most, and a fifth for the rest of the machine.
    guard Memory.available > count * 6_000 else {
      complain("parked_1M: skipped, because \(count) coroutines need \(count * 6_000 >> 20) MiB of free memory")
      return []
    }
    return try measureParked(count).figures
  }

  suite.figures(
    [Figure("parked_1M_64_KiB_bytes", unit: "bytes"), Figure("parked_1M_64_KiB_start")],
    1_000_000,
    quick: 100_000,
    fresh: true
  ) { count in
    guard Memory.available > count * 6_000 else { return [] }
    let parked = try measureParked(count, stack: .bytes(64 << 10))
    // All in.
    return [parked.bytes + parked.pageTables, parked.start]
  }

  // The kernel's part of a start, on one thread.
  suite.figures([Figure("parked_1M_floor")], 1_000_000, quick: 100_000, fresh: true) { count in
    guard Memory.available > count * 6_000 else { return [] }
    let taken = cprobe_touch_stacks(UInt64(count))
    if taken == 0 { complain("parked_1M_floor: skipped, this kernel installs no guard markers in batches") }
    return taken == 0 ? [] : [Double(taken) / Double(count)]
  }
}

// Coroutines that have been deep, and then wait. In a process of its own, because the memory of stacks that others have
// left would be counted for nobody.

func addExcursions(to suite: inout Suite) {
  suite.figures(
    [Figure("excursion_deep_bytes", unit: "bytes"), Figure("excursion_after_5s_bytes", unit: "bytes")],
    20_000,
    quick: 2_000,
    fresh: true
  ) { count in
    guard Memory.available > count * 48_000 else {
      complain("excursion: skipped, because \(count) coroutines need \(count * 48_000 >> 20) MiB of free memory")
      return []
    }
    return try measureExcursion(count)
  }
}

/// The memory of each coroutine that was 32 KiB deep: when all have begun to wait, and five seconds later.
private func measureExcursion(_ count: Int) throws -> [Double] {
  let progress = Progress()
  let before = Memory.current
  let figures = try co_launch {
    let gate = Promise<Int>()
    for _ in 0..<count {
      co_launch {
        progress.resumed.add(goDeep(32), ordering: .relaxed)
        progress.started.add(1, ordering: .relaxed)
        _ = try co_await(gate)
      }
    }
    while progress.started.load(ordering: .relaxed) < count { try co_yield() }
    let deep = Memory.current.resident - before.resident
    try co_delay(.seconds(5))
    let after = Memory.current.resident - before.resident
    gate.fulfill(1)
    return [Double(deep), Double(after)]
  }.blockingWait()
  expect(progress.resumed.load(ordering: .relaxed), equals: count * 32, "levels")
  return figures.map { $0 / Double(count) }
}

/// Goes `levels` frames of 1 KiB deep, and returns their number.
@inline(never)
private func goDeep(_ levels: Int) -> Int {
  withUnsafeTemporaryAllocation(of: Int.self, capacity: 120) { frame in
    frame.initialize(repeating: levels)
    return (levels > 1 ? goDeep(levels - 1) : 0) + (frame[levels] == levels ? 1 : 0)
  }
}

/// What each of the parked coroutines took: its memory, its launch, its page tables, and its wake-up and end.
private struct Parked {
  let bytes: Double
  let start: Double
  let pageTables: Double
  let wakeAndEnd: Double

  var figures: [Double] { [bytes, start, pageTables, wakeAndEnd] }
}

/// On the shared scheduler, as the peers: whatever processors there are may help.
private func measureParked(_ count: Int, stack: StackSize = .standard) throws -> Parked {
  let progress = Progress()
  let before = Memory.current
  let figures = try co_launch {
    let gate = Promise<Int>()
    let start = Clock.wall.now
    for _ in 0..<count {
      co_launch(stack: stack) {
        progress.started.add(1, ordering: .relaxed)
        let number = try co_await(gate)
        progress.resumed.add(number, ordering: .relaxed)
      }
    }
    while progress.started.load(ordering: .relaxed) < count { try co_yield() }
    let parked = Clock.wall.now
    let now = Memory.current
    let stacks = cprobe_count_stacks()
    expect(stacks.live >= UInt64(count), "every parked coroutine has a stack: \(stacks.live) for \(count)")
    expect(progress.resumed.load(ordering: .relaxed), equals: 0, "coroutines that went on too early")

    let opened = Clock.wall.now
    gate.fulfill(1)
    while progress.resumed.load(ordering: .relaxed) < count { try co_yield() }
    let ended = Clock.wall.now
    return [
      Double(now.resident - before.resident), Double(parked - start), Double(now.pageTables - before.pageTables),
      Double(ended - opened),
    ]
  }.blockingWait()
  // Each went on once: who went on twice would be counted by now, for there is nobody left who could.
  expectMemoryBack(before, grown: Int(figures[0]))
  expect(progress.started.load(ordering: .relaxed), equals: count, "coroutines that started")
  expect(progress.resumed.load(ordering: .relaxed), equals: count, "coroutines that went on")
  let each = figures.map { $0 / Double(count) }
  return Parked(bytes: each[0], start: each[1], pageTables: each[2], wakeAndEnd: each[3])
}

private final class Progress: Sendable {
  let started = Atomic<Int>(0)
  let resumed = Atomic<Int>(0)
}

/// The runtime gives the stacks' memory back by itself once nothing runs.
///
/// That is not instant, so it has ten seconds; what the C library keeps of the small blocks is its own affair.
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
      + "\(stacks.dirty) pooled stacks that hold memory"
  )
}
