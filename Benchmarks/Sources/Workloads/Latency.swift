import Coroutine
import Dispatch
import Glibc
import Harness

// How long a timer and a foreign block wait on a queue that is never idle, and a timer on a worker that is never idle.

func addLatency(to suite: inout Suite) {
  addQueueLatency(to: &suite)
  addWorkerLatency(to: &suite)
}

private func addQueueLatency(to suite: inout Suite) {
  // Two coroutines that wake each other for ever.
  suite.figures([Figure("latency_timer_max"), Figure("latency_block_max")], 200, quick: 20) { count in
    let probe = LatencyProbe()
    let exchange = Exchange()
    let players = (0..<2).map { _ in
      co_launch(on: probe.queue) {
        while !probe.isOver { try co_suspend { exchange.resumeOther(andStore: $0) } }
        exchange.resumeOther(andStore: nil)
      }
    }
    let delays = try probe.timerDelays(count) { probe.blockDelays(count) }
    for player in players { try player.blockingWait() }
    return [Double(delays.timers.max()!), Double(delays.blocks.max()!)]
  }

  // Ten thousand coroutines that are always ready.
  suite.figures([Figure("latency_timer_p99_10k"), Figure("latency_block_p99_10k")], 200, quick: 20) { count in
    let probe = LatencyProbe()
    let players = (0..<10_000).map { _ in
      co_launch(on: probe.queue) { while !probe.isOver { try co_yield() } }
    }
    let delays = try probe.timerDelays(count) { probe.blockDelays(count) }
    for player in players { try player.blockingWait() }
    return [percentile99(delays.timers), percentile99(delays.blocks)]
  }
}

private func addWorkerLatency(to suite: inout Suite) {
  // Coroutines that yield to each other for ever.
  for (name, players) in [("latency_timer_p99_worker", 2), ("latency_timer_p99_worker_64", 64)] {
    suite.figures([Figure(name)], 1_000, quick: 20, fresh: true) { count in
      [percentile99(try delaysOnOneWorker(count, beside: players) { try co_yield() })]
    }
  }
  // One that computes and never yields: a spare worker takes the sleeper.
  suite.figures([Figure("latency_timer_p99_computing")], 200, quick: 20, fresh: true) { count in
    [percentile99(try delaysOnOneWorker(count, beside: 1) {})]
  }
}

/// Sleeps 1 ms at a time on a pool of one worker, beside `players` coroutines that do `turn` without end, and returns
/// how late each sleep ended.
///
/// The pool must not have been used before, so the process must be a new one.
private func delaysOnOneWorker(
  _ count: Int,
  beside players: Int,
  _ turn: @escaping @Sendable () throws -> Void
) throws -> [UInt64] {
  setenv("COROUTINE_WORKERS", "1", 1)
  let end = Promise<Bool>()
  let players = (0..<players).map { _ in co_launch { while !end.isSettled { try turn() } } }
  let sleeper = co_launch { try sleep(count) }
  let delays = try sleeper.blockingWait()
  end.fulfill(true)
  for player in players { try player.blockingWait() }
  expect(delays.count, equals: count, "sleeps")
  return delays
}

/// Sleeps 1 ms at a time, and returns how late each sleep ended.
private func sleep(_ count: Int) throws -> [UInt64] {
  var delays: [UInt64] = []
  for _ in 0..<count {
    let due = Clock.wall.now + 1_000_000
    try co_delay(.milliseconds(1))
    delays.append(Clock.wall.now - due)
  }
  return delays
}

private func percentile99(_ delays: [UInt64]) -> Double { Double(delays.sorted()[(delays.count * 99 + 99) / 100 - 1]) }

/// A queue with its measurements.
private final class LatencyProbe: @unchecked Sendable {
  // Sound because the flag is used on the serial queue alone.
  let queue = DispatchQueue(label: "latency")
  private(set) var isOver = false

  /// Sleeps 1 ms at a time on the queue, and returns how late each sleep ended; `meanwhile` runs on the calling thread.
  func timerDelays(_ count: Int, meanwhile: () -> [UInt64]) throws -> (timers: [UInt64], blocks: [UInt64]) {
    let sleeper = co_launch(on: queue) { try sleep(count) }
    let blocks = meanwhile()
    let timers = try sleeper.blockingWait()
    queue.sync { isOver = true }
    expect(timers.count, equals: count, "sleeps")
    expect(blocks.count, equals: count, "blocks")
    return (timers, blocks)
  }

  /// Submits a block now and then from the calling thread, and returns how long each waited to run.
  func blockDelays(_ count: Int) -> [UInt64] {
    (0..<count).map { _ in
      usleep(1000)
      let submitted = Clock.wall.now
      return queue.sync { Clock.wall.now - submitted }
    }
  }
}

/// Where one of two coroutines leaves its resumer for the other.
private final class Exchange: @unchecked Sendable {
  // Sound because both coroutines run on one serial queue.
  private var stored: Resumer<Void>?

  func resumeOther(andStore mine: Resumer<Void>?) {
    let other = stored
    stored = mine
    other?.resume(())
  }
}
