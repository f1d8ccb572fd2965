import AsyncAlgorithms
import Harness

func addSequences(to suite: inout Suite) {
  suite.row("generator_next", 1_000_000) { count in
    let sum = try inTask {
      var numbers = AsyncStream<Int>(unfolding: { 1 }).makeAsyncIterator()
      var sum = 0
      for _ in 0..<count { sum += await numbers.next() ?? 0 }
      return sum
    }
    expect(sum, equals: count, "sum of the numbers")
  }

  suite.row("pingpong", 100_000) { count in
    let sum = try inTask {
      let (there, back) = (AsyncChannel<Int>(), AsyncChannel<Int>())
      async let echo: Void = {
        for await number in there { await back.send(number) }
        back.finish()
      }()
      var answers = back.makeAsyncIterator()
      var sum = 0
      for index in 0..<count {
        await there.send(index)
        sum += await answers.next() ?? 0
      }
      there.finish()
      await echo
      return sum
    }
    expect(sum, equals: count * (count - 1) / 2, "sum of what came back")
  }

  // The nearest thing there is: its buffer has no end, so the producer never waits.
  suite.row("chan_buffered_1p1c", 500_000) { count in
    let sum = try inTask {
      let (values, continuation) = AsyncStream<Int>.makeStream(bufferingPolicy: .unbounded)
      async let producer: Void = {
        for index in 0..<count { continuation.yield(index) }
        continuation.finish()
      }()
      var sum = 0
      for await value in values { sum += value }
      await producer
      return sum
    }
    expect(sum, equals: count * (count - 1) / 2, "sum of what was received")
  }
}
