import Coroutine
import Driving
import Harness

// A tree of coroutines, ten children each, that adds up the numbers of its million leaves: starting, ending and waiting
// for one's children, with work for every processor.

func addSkynet(to suite: inout Suite) {
  suite.figures([Figure("skynet_1M")], 1_000_000, quick: 100_000) { count in
    try nanoseconds(sumOf: count) { try co_launch { try skynet(0, count) }.blockingWait() }
  }
  // The same on one queue: what is lost where there is but one processor.
  suite.figures([Figure("skynet_1M_serial")], 1_000_000, quick: 100_000) { count in
    try nanoseconds(sumOf: count) { try onQueue { try skynet(0, count) } }
  }
  // As the Go program writes it: the children's sums come through a channel.
  suite.figures([Figure("skynet_1M_channels")], 1_000_000, quick: 100_000) { count in
    try nanoseconds(sumOf: count) {
      try co_launch {
        let out = Channel<Int>()
        co_launch { try skynetByChannel(out, 0, count) }
        return try out.receive() ?? 0
      }
      .blockingWait()
    }
  }
}

/// The time of the whole program; the table shows milliseconds.
private func nanoseconds(sumOf leaves: Int, _ program: () throws -> Int) throws -> [Double] {
  let start = Clock.wall.now
  let sum = try program()
  let end = Clock.wall.now
  expect(sum, equals: leaves * (leaves - 1) / 2, "sum of the leaves")
  return [Double(end - start)]
}

private func skynet(_ number: Int, _ size: Int) throws -> Int {
  if size == 1 { return number }
  let children = (0..<10).map { index in co_launch { try skynet(number + index * (size / 10), size / 10) } }
  return try children.reduce(0) { try $0 + $1.join() }
}

private func skynetByChannel(_ out: Channel<Int>, _ number: Int, _ size: Int) throws {
  if size == 1 { return try out.send(number) }
  let children = Channel<Int>()
  for index in 0..<10 { co_launch { try skynetByChannel(children, number + index * (size / 10), size / 10) } }
  var sum = 0
  for _ in 0..<10 { sum += try children.receive() ?? 0 }
  try out.send(sum)
}
