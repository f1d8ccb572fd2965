import Coroutine
import Driving
import Harness

// What a coroutine costs as the scheduler sees it: giving way, starting, ending.

func addJobs(to suite: inout Suite) {
  // Two coroutines of one queue in turn. That they do take turns is part of the result.
  suite.row("yield", 4_000_000) { count in
    let turns = Counter()
    let outOfTurn = try onQueue {
      try (0..<2).map { me in co_launch { try takeTurns(count / 2, turns, me) } }.reduce(0) { try $0 + $1.join() }
    }
    expect(turns.finish(), equals: count, "turns taken")
    expect(outOfTurn, equals: 0, "turns out of order")
  }

  // As the peers' programs do it: nobody keeps a handle, a wait group counts the ends.
  suite.memoryRow("spawn", 1_000_000) { count in try onQueue { try spawnInGroup(count) } }
  suite.memoryRow("spawn_parallel", 1_000_000) { count in try co_launch { try spawnInGroup(count) }.blockingWait() }

  // A million handles that live until the last has been asked.
  suite.memoryRow("spawn_handles", 1_000_000) { count in
    let ran = Counter()
    try onQueue {
      let jobs = (0..<count).map { _ in co_launch { _ = ran.increment() } }
      for job in jobs { try job.join() }
    }
    expect(ran.finish(), equals: count, "bodies that ran")
  }

  suite.memoryRow("spawn_scope", 1_000_000) { count in
    let ran = Counter()
    try onQueue {
      try co_scope { scope in for _ in 0..<count { scope.launch { _ = ran.increment() } } }
    }
    expect(ran.finish(), equals: count, "bodies that ran")
  }

  suite.row("spawn_join", 1_000_000) { count in
    let sum = try onQueue {
      var sum = 0
      for index in 0..<count { sum &+= try co_launch { index }.join() }
      return sum
    }
    expect(sum, equals: count * (count - 1) / 2, "sum of the results")
  }
}

private func spawnInGroup(_ count: Int) throws {
  let group = WaitGroup()
  group.add(count)
  for _ in 0..<count { co_launch { group.done() } }
  // A wait group that is done once too often traps, and one that is not hangs: the wait is the check.
  try group.wait()
}

private func takeTurns(_ count: Int, _ turns: Counter, _ me: Int) throws -> Int {
  var outOfTurn = 0
  for _ in 0..<count {
    if turns.increment() & 1 != me { outOfTurn += 1 }
    try co_yield()
  }
  return outOfTurn
}
