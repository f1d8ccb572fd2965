import Coroutine
import Testing

/// What the guide's page StreamOperators shows.
@Suite("Operators of swift-async-algorithms on channels", .timeLimit(.minutes(1)))
struct StreamOperatorTests {
  @Test func `a debounced channel gives the last of what came quickly, and its end`() async throws {
    let typed = Channel<String>(8)
    let searches = Channel<String>(8)
    let job = co_launch {
      try searchWhenQuiet(typed) { try searches.send($0) }
      searches.close()
    }
    let found = try await co_launch {
      for text in ["s", "sw", "swift"] { try typed.send(text) }
      let first = try searches.receive()
      try typed.send("swift o")
      typed.close()
      return [first, try searches.receive(), try searches.receive()]
    }.value
    #expect(found == ["swift", "swift o", nil])
    try await job.value
  }

  @Test func `a combined pair has the newest of both watches`() async throws {
    let (prices, rates) = (Watch(10), Watch(2))
    let totals = Channel<Int>(8)
    let job = co_launch { try showTotals(prices, rates) { try totals.send($0) } }
    let shown = try await co_launch {
      var shown = [try totals.receive()]
      try prices.send(20)
      shown.append(try totals.receive())
      try rates.send(3)
      shown.append(try totals.receive())
      prices.close()
      rates.close()
      return shown
    }.value
    #expect(shown == [20, 40, 60])
    try await job.value
  }

  @Test func `merged channels lose nothing, and keep the order of each`() async throws {
    let (one, other) = (Channel<Int>(4), Channel<Int>(4))
    let job = co_launch {
      var handled: [Int] = []
      try handleOrders(one, other) { handled.append($0) }
      return handled
    }
    for (channel, sign) in [(one, 1), (other, -1)] {
      co_launch {
        for order in 1...100 { try channel.send(sign * order) }
        channel.close()
      }
    }
    let handled = try await job.value
    #expect(handled.filter { $0 > 0 } == Array(1...100) && handled.filter { $0 < 0 }.map { -$0 } == Array(1...100))
  }

  @Test func `the error of a channel's end, and a cancellation, reach the coroutine`() async throws {
    struct Broken: Error {}
    let (one, other) = (Channel<Int>(4), Channel<Int>(4))
    let job = co_launch { try handleOrders(one, other) { _ in } }
    one.close(Broken())
    await #expect(throws: Broken.self) { try await job.value }
    let typed = Channel<String>()
    let waits = co_launch { try searchWhenQuiet(typed) { _ in } }
    waits.cancel()
    await #expect(throws: CancellationError.self) { try await waits.value }
  }
}
