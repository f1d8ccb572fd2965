import Coroutine
import CoroutineTesting
import Testing

// The code of the examples of Broadcast and Watch, run in worlds. scripts/lint compares the two.

@Suite("What Broadcast and Watch show", .inWorlds, .timeLimit(.minutes(10)))
struct BroadcastSnippets {
  @Test func `each receiver sees each value`() throws {
    let prices = Broadcast<Int>(16)
    let seen = prices.subscribe()
    let last = co_launch {
      var last = 0
      while let price = try seen.receive() { last = price }
      return last
    }
    for price in [7, 9, 8] { try prices.send(price) }
    prices.close()
    #expect(try last.join() == 8)
  }

  @Test func `a coroutine waits for a value`() throws {
    let connections = Watch(0)
    co_launch { try connections.update { $0 += 1 } }
    let enough = try connections.wait { $0 > 0 }
    #expect(enough == 1)
  }
}
