import Harness

func addTasks(to suite: inout Suite) {
  suite.row("yield", 500_000) { count in
    let turns = try inTask {
      await withTaskGroup(of: Int.self) { group in
        for _ in 0..<2 {
          group.addTask {
            for _ in 0..<count / 2 { await Task.yield() }
            return count / 2
          }
        }
        return await group.reduce(0, +)
      }
    }
    expect(turns, equals: count, "turns taken")
  }

  suite.row("spawn", 500_000) { count in
    let ran = try inTask {
      await withTaskGroup(of: Int.self) { group in
        for _ in 0..<count { group.addTask { 1 } }
        return await group.reduce(0, +)
      }
    }
    expect(ran, equals: count, "tasks that ran")
  }

  suite.row("spawn_join", 200_000) { count in
    let sum = try inTask {
      var sum = 0
      for index in 0..<count { sum += await Task.detached { index }.value }
      return sum
    }
    expect(sum, equals: count * (count - 1) / 2, "sum of the results")
  }

  suite.row("skynet_1M", 1) { _ in
    expect(try inTask { await skynet(0, 1_000_000) }, equals: 499_999_500_000, "sum of the leaves")
  }

  suite.row("actor_ask", 1_000_000) { count in
    let sum = try inTask {
      let counter = Adder()
      for index in 0..<count { await counter.add(index) }
      return await counter.sum
    }
    expect(sum, equals: count * (count - 1) / 2, "sum that the actor holds")
  }

  // The processor's time for each; the wall's is a second whatever one does.
  suite.row("timers_100k", 100_000, quick: 20_000, clock: .processor) { count in
    let early = try inTask {
      await withTaskGroup(of: Int.self) { group in
        for index in 0..<count { group.addTask { await isEarly(after: 1 + index % 1000) } }
        return await group.reduce(0, +)
      }
    }
    expect(early, equals: 0, "sleepers that woke too early")
  }
}

private actor Adder {
  private(set) var sum = 0
  func add(_ number: Int) { sum += number }
}

private func skynet(_ number: Int, _ size: Int) async -> Int {
  if size == 1 { return number }
  return await withTaskGroup(of: Int.self) { group in
    for index in 0..<10 { group.addTask { await skynet(number + index * (size / 10), size / 10) } }
    return await group.reduce(0, +)
  }
}

/// One in sixteen looks at the clock, which costs as much as some of what is measured.
private func isEarly(after milliseconds: Int) async -> Int {
  guard milliseconds & 15 == 0 else {
    try? await Task.sleep(for: .milliseconds(milliseconds))
    return 0
  }
  let start = Clock.wall.now
  try? await Task.sleep(for: .milliseconds(milliseconds))
  return Clock.wall.now - start < UInt64(milliseconds) * 1_000_000 ? 1 : 0
}
