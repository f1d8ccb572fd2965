import Coroutine
import Testing

private func taken(from channel: Channel<Int>) -> Int? {
  if case .received(let value) = channel.tryReceive() { return value }
  return nil
}

/// The buffer of a channel grows by segments.
@Suite("A channel keeps its order while its buffer grows", .timeLimit(.minutes(1)))
struct ChannelGrowthTests {
  @Test(arguments: [Channel<Int>.Capacity.unbounded, .bounded(30_000), .dropOldest(30_000)])
  func `through many rises and falls`(_ capacity: Channel<Int>.Capacity) {
    let channel = Channel<Int>(capacity)
    var (sent, received) = (0, 0)
    for round in 1...30 {
      for _ in 0..<(round * 97) {
        #expect(channel.trySend(sent) == .sent)
        sent += 1
      }
      for _ in 0..<(round * 71) {
        #expect(taken(from: channel) == received)
        received += 1
      }
      #expect(channel.count == sent - received)
    }
    while let value = taken(from: channel) {
      #expect(value == received)
      received += 1
    }
    #expect(received == sent)
  }

  @Test func `up to a limit that is larger than the first segment`() throws {
    let channel = Channel<Int>(.bounded(20_000))
    for value in 0..<20_000 { #expect(channel.trySend(value) == .sent) }
    #expect(channel.trySend(-1) == .full)
    try co_launch {
      let sender = co_launch { for value in 20_000..<50_000 { try channel.send(value) } }
      for value in 0..<50_000 { #expect(try channel.receive() == value) }
      try sender.join()
    }.wait()
    #expect(channel.count == 0)
  }

  @Test func `and drops the oldest value of all segments`() {
    let channel = Channel<Int>(.dropOldest(20_000))
    for value in 0..<45_000 { #expect(channel.trySend(value) == .sent) }
    #expect(channel.count == 20_000)
    for value in 25_000..<45_000 { #expect(taken(from: channel) == value) }
    #expect(taken(from: channel) == nil)
  }

  @Test func `by the sends of selects`() throws {
    let channel = Channel<Int>(.unbounded)
    try co_launch {
      for value in 0..<1_000 { try co_select { channel.onSend(value) {} } }
      for value in 0..<1_000 { #expect(try channel.receive() == value) }
    }.wait()
  }

  @Test func `and takes values back to the front of several segments`() throws {
    let channel = Channel<Int>(.unbounded)
    for value in 0..<100 { #expect(channel.trySend(value) == .sent) }
    let taker = co_launch { try channel.receive(count: 1_000) }
    while channel.count > 0 { try co_launch { try co_yield() }.wait() }
    taker.cancel()
    #expect(throws: CancellationError.self) { try taker.wait() }
    #expect(channel.count == 100)
    for value in 100..<200 { #expect(channel.trySend(value) == .sent) }
    for value in 0..<200 { #expect(taken(from: channel) == value) }
  }

  @Test func `and releases what is left in every segment`() {
    final class Probe: Sendable {}
    weak var first: Probe?
    weak var last: Probe?
    do {
      let channel = Channel<Probe>(.unbounded)
      for index in 0..<100 {
        let probe = Probe()
        if index == 0 { first = probe }
        if index == 99 { last = probe }
        #expect(channel.trySend(probe) == .sent)
      }
      #expect(first != nil && last != nil)
    }
    #expect(first == nil && last == nil)
  }
}
