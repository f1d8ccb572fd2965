import Testing

@testable import Coroutine

@Suite("co_ticker", .timeLimit(.minutes(10)))
struct TickerTests {
  @Test(.inWorlds) func `ticks come at the multiples of the interval, whatever the body takes`() throws {
    let ticker = co_ticker(every: .seconds(1))
    for tick in 1...20 {
      #expect(try ticker.next() == 1)
      #expect(worldTime == .seconds(tick))
      try co_delay(.milliseconds(tick * 40))
    }
  }

  @Test(.inWorlds) func `ticks that have passed are counted, and the next ones stay at the multiples`() throws {
    let ticker = co_ticker(every: .seconds(1))
    try co_delay(.milliseconds(3_500))
    #expect(ticker.timeLeft == .zero)
    #expect(try ticker.next() == 3)
    #expect(worldTime == .milliseconds(3_500))
    #expect(ticker.timeLeft == .milliseconds(500))
    #expect(try ticker.next() == 1)
    #expect(worldTime == .seconds(4))
  }

  @Test(.inWorlds) func `a select takes a tick, or leaves it to the next one`() throws {
    let (ticker, channel) = (co_ticker(every: .seconds(1)), Channel<Int>(1))
    func choose() throws -> String {
      try co_select(biased: true) {
        channel.onReceive { "received \($0 ?? 0)" }
        ticker.onTick { "tick \($0)" }
      }
    }
    try channel.send(7)
    #expect(try choose() == "received 7")
    #expect(try choose() == "tick 1")
    #expect(worldTime == .seconds(1))
    try co_delay(.milliseconds(1_500))
    #expect(try choose() == "tick 1")
    #expect(worldTime == .milliseconds(2_500))
  }

  @Test(.inWorlds) func `coroutines that share a ticker get each tick once`() throws {
    let (ticker, count) = (co_ticker(every: .seconds(1)), Locked(0))
    let jobs = (0..<3).map { _ in
      co_launch {
        while true {
          let ticks = try ticker.next()
          count.withLock { $0 += ticks }
        }
      }
    }
    try co_delay(.milliseconds(10_500))
    #expect(count.withLock { $0 } == 10)
    for job in jobs { job.cancel() }
    for job in jobs { #expect(outcome { try job.join() } == "CancellationError") }
  }
}
