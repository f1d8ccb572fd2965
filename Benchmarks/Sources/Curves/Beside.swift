import Coroutine
import Dispatch
import Driving
import Harness

// What two or three coroutines do, beside many that wait on the same queue: must cost the same however many those are.

func addBeside(_ sizes: [Int], to suite: inout Suite) {
  for live in sizes {
    curve("yield", beside: live, 1_000_000, &suite) { count in
      let turns = Counter()
      let players = (0..<2).map { _ in
        co_launch {
          for _ in 0..<(count / 2) {
            _ = turns.increment()
            try co_yield()
          }
        }
      }
      for player in players { try player.join() }
      expect(turns.finish(), equals: count / 2 * 2, "turns taken")
    }
    curve("pingpong", beside: live, 500_000, &suite) { count in
      let (there, back) = (Channel<Int>(), Channel<Int>())
      co_launch {
        while let value = try there.receive() { try back.send(value) }
        back.close()
      }
      var sum = 0
      for value in 0..<count {
        try there.send(value)
        sum += try back.receive() ?? 0
      }
      there.close()
      expect(sum, equals: count * (count - 1) / 2, "sum of what came back")
    }
    curve("spawn_join", beside: live, 500_000, &suite) { count in
      var sum = 0
      for index in 0..<count { sum &+= try co_launch { index }.join() }
      expect(sum, equals: count * (count - 1) / 2, "sum of the results")
    }
    addTimer(beside: live, to: &suite)
    addCancel(among: live, to: &suite)
  }
}

/// Sets a timer and calls it off, beside sleepers.
private func addTimer(beside live: Int, to suite: inout Suite) {
  measured("timer", live, 500_000, &suite) { count in
    try onQueue {
      let sleepers = (0..<live).map { index in co_launch { try co_delay(.seconds(3600 + index % 1000)) } }
      try co_yield()
      let started = Clock.processor.now
      for index in 0..<count { try co_timeout(.seconds(1800 + index % 1000)) {} }
      let taken = Clock.processor.now - started
      for sleeper in sleepers { sleeper.cancel() }
      expect(try ended(sleepers), equals: live, "sleepers that were cancelled")
      return Double(taken) / Double(count)
    }
  }
}

/// Cancels one of many that wait for one channel, wherever in its queue, and waits until it has ended.
private func addCancel(among live: Int, to suite: inout Suite) {
  measured("cancel", live, 1_000, &suite) { count in
    try onQueue {
      let channel = Channel<Int>()
      let waiters = (0..<live).map { _ in co_launch { _ = try channel.receive() } }
      try co_yield()
      let chosen = min(count, live)
      let started = Clock.processor.now
      for index in 0..<chosen {
        let waiter = waiters[index * (live / chosen)]
        waiter.cancel()
        _ = try? waiter.join()
      }
      let taken = Clock.processor.now - started
      for waiter in waiters { waiter.cancel() }
      expect(try ended(waiters), equals: live, "waiters that were cancelled")
      return Double(taken) / Double(chosen)
    }
  }
}

/// Waits for all; returns how many ended by their cancellation.
private func ended(_ jobs: [Job<Void>]) throws -> Int {
  try jobs.reduce(0) { count, job in
    do {
      try job.join()
      return count
    } catch is CancellationError {
      return count + 1
    }
  }
}

/// `body` runs beside `live` coroutines that wait for a promise, and does as many operations as it is told.
private func curve(
  _ series: String,
  beside live: Int,
  _ operations: Int,
  _ suite: inout Suite,
  _ body: @escaping @Sendable (Int) throws -> Void
) {
  measured(series, live, operations, &suite) { count in
    try onQueue {
      let gate = Promise<Int>()
      let crowd = (0..<live).map { _ in co_launch { try co_await(gate) } }
      try co_yield()
      let started = Clock.processor.now
      try body(count)
      let taken = Clock.processor.now - started
      gate.fulfill(1)
      expect(try crowd.reduce(0) { try $0 + $1.join() }, equals: live, "coroutines that were parked")
      return Double(taken) / Double(count)
    }
  }
}
