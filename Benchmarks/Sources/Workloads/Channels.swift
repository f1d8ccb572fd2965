import Coroutine
import Dispatch
import Driving
import Harness

// Values handed from coroutine to coroutine. Unless a row's name says otherwise all of them share one serial queue.

func addChannels(to suite: inout Suite) {
  suite.row("pingpong", 2_000_000) { count in
    let sum = try onQueue { try pingPong(count) }
    expect(sum, equals: count * (count - 1) / 2, "sum of what came back")
  }

  suite.figures(
    [Figure("pingpong_two_queues"), Figure("pingpong_two_queues_ratio", unit: "ratio")],
    200_000
  ) { count in
    let bare = nanosecondsPerHop(count, bareHops)
    let ours = nanosecondsPerHop(count) { count in
      let sum = try? onQueue { try pingPong(count / 2, with: DispatchQueue(label: "far")) }
      return sum == (count / 2) * (count / 2 - 1) / 2 ? count : 0
    }
    return [ours * 2, ours / bare]
  }

  suite.row("chan_buffered_1p1c", 8_000_000) { count in
    let sum = try onQueue { try throughChannel(count, capacity: 128, pairs: 1) }
    expect(sum, equals: count * (count - 1) / 2, "sum of what was received")
  }

  suite.row("chan_buffered_4p4c", 4_000_000) { count in
    let each = count / 4
    let sum = try onQueue { try throughChannel(count, capacity: 128, pairs: 4) }
    expect(sum, equals: 4 * (each * (each - 1) / 2), "sum of what was received")
  }

  // The same on the parallel scheduler, where the eight may run on all processors.
  suite.row("chan_buffered_4p4c_parallel", 2_000_000) { count in
    let each = count / 4
    let sum = try co_launch { try throughChannel(count, capacity: 128, pairs: 4) }.blockingWait()
    expect(sum, equals: 4 * (each * (each - 1) / 2), "sum of what was received")
  }

  suite.row("ring_1000", 2_000_000, quick: 20_000) { count in try onQueue { try ring(1000, laps: count / 1000) } }

  // As many rings as workers may want: work that spreads, on the parallel scheduler.
  suite.row("rings_8_parallel", 2_000_000, quick: 20_000) { count in
    try co_launch {
      try co_scope { scope in
        for _ in 0..<8 { scope.launch { try ring(100, laps: count / 800) } }
      }
    }
    .blockingWait()
  }

  // What cannot spread must not lose by the parallel scheduler's being one.
  suite.figures(
    [Figure("pingpong_parallel"), Figure("pingpong_parallel_ratio", unit: "ratio")],
    2_000_000
  ) { count in
    let serial = try nanoseconds(count) { try onQueue { try pingPong(count) } }
    let parallel = try nanoseconds(count) { try co_launch { try pingPong(count) }.blockingWait() }
    return [parallel, parallel / serial]
  }

  suite.row("select2", 2_000_000) { count in
    let sum = try onQueue { try selectBetween(count) }
    expect(sum, equals: count / 2 * 3, "sum of what was selected")
  }

  // One operation is the whole program; the table shows milliseconds.
  suite.figures([Figure("sieve_1000")], 1000, quick: 100) { count in
    let start = Clock.wall.now
    let prime = try onQueue { try sieve(count) }
    let end = Clock.wall.now
    if count == 1000 { expect(prime, equals: 7919, "the thousandth prime") }
    return [Double(end - start)]
  }
}

private func nanoseconds(_ count: Int, _ pingPong: () throws -> Int) throws -> Double {
  let start = Clock.wall.now
  let sum = try pingPong()
  let end = Clock.wall.now
  expect(sum, equals: count * (count - 1) / 2, "sum of what came back")
  return Double(end - start) / Double(count)
}

/// `queue`: where the other side is; nil: on the same queue.
private func pingPong(_ count: Int, with queue: DispatchQueue? = nil) throws -> Int {
  let (there, back) = (Channel<Int>(), Channel<Int>())
  co_launch(on: queue) {
    while let value = try there.receive() { try back.send(value) }
    back.close()
  }
  var sum = 0
  for value in 0..<count {
    try there.send(value)
    sum += try back.receive() ?? 0
  }
  there.close()
  return sum
}

/// As many producers as consumers around one channel.
private func throughChannel(_ count: Int, capacity: Int, pairs: Int) throws -> Int {
  let values = Channel<Int>(.bounded(capacity))
  let producers = (0..<pairs).map { _ in
    co_launch { for value in 0..<(count / pairs) { try values.send(value) } }
  }
  let consumers = (0..<pairs).map { _ in
    co_launch {
      var sum = 0
      while let value = try values.receive() { sum += value }
      return sum
    }
  }
  for producer in producers { try producer.join() }
  values.close()
  return try consumers.reduce(0) { try $0 + $1.join() }
}

private func ring(_ nodes: Int, laps: Int) throws {
  let first = Channel<Int>()
  var last = first
  for _ in 0..<nodes {
    let (from, to) = (last, Channel<Int>())
    co_launch {
      while let value = try from.receive() { try to.send(value + 1) }
      to.close()
    }
    last = to
  }
  for _ in 0..<laps {
    try first.send(0)
    expect(try last.receive(), equals: nodes, "hops of a lap")
  }
  first.close()
  expect(try last.receive() == nil, "the ring ends")
}

/// The generator and the filters are cancelled at the end; that is no part of the sieve but cheap beside it.
private func sieve(_ count: Int) throws -> Int {
  var prime = 0
  try co_scope { scope in
    var numbers = Channel<Int>()
    let source = numbers
    scope.launch {
      var value = 2
      while true {
        try source.send(value)
        value += 1
      }
    }
    for _ in 0..<count {
      prime = try numbers.receive() ?? 0
      let (from, to, divisor) = (numbers, Channel<Int>(), prime)
      scope.launch {
        while let value = try from.receive() { if value % divisor != 0 { try to.send(value) } }
      }
      numbers = to
    }
    scope.cancel()
  }
  return prime
}

private func selectBetween(_ count: Int) throws -> Int {
  let (left, right) = (Channel<Int>(), Channel<Int>())
  co_launch {
    for _ in 0..<(count / 2) {
      try left.send(1)
      try right.send(2)
    }
  }
  var sum = 0
  for _ in 0..<(count / 2 * 2) {
    sum += try co_select {
      left.onReceive { $0 ?? 0 }
      right.onReceive { $0 ?? 0 }
    }
  }
  return sum
}
