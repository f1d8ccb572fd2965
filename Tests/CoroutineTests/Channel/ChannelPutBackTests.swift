import Coroutine
import Testing

@Suite("Channel: values that a cancelled receive puts back", .timeLimit(.minutes(10)))
struct ChannelPutBackTests {
  /// A coroutine that waits for one value more than it was given.
  private func batch(of values: Range<Int>, in channel: Channel<Int>) throws -> Job<[Int]> {
    let batch = co_launch { try channel.receive(count: values.count + 1) }
    for value in values {
      try co_yield()
      try channel.send(value)
    }
    try co_yield()
    return batch
  }

  @Test func `a channel of capacity one that drops the oldest keeps the latest value, not the one put back`()
    async throws
  {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(.dropOldest(1)) { dropped("\($0)") }
      let batch = try batch(of: 1..<2, in: channel)
      batch.cancel()
      try channel.send(2)
      #expect(outcome { try batch.join() } == "CancellationError")
      #expect(channel.count == 1)
      #expect(dropped.all == ["1"])
      try channel.send(3)
      #expect(channel.count == 1)
      #expect(channel.tryReceive().name == "3")
    }
    #expect(dropped.all == ["1", "2"])
  }

  @Test func `in a channel that drops the oldest, the newest values that fit are put back`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(.dropOldest(3)) { dropped("\($0)") }
      let batch = try batch(of: 0..<4, in: channel)
      batch.cancel()
      try channel.send(4)
      #expect(outcome { try batch.join() } == "CancellationError")
      #expect(try channel.receiveAll() == [2, 3, 4])
    }
    #expect(dropped.all == ["0", "1"])
  }

  @Test func `a waiting receiver is served first, with the oldest value`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(.dropOldest(1)) { dropped("\($0)") }
      let batch = try batch(of: 0..<4, in: channel)
      let others = (0..<2).map { _ in co_launch { try channel.receive() } }
      try co_yield()
      batch.cancel()
      #expect(outcome { try batch.join() } == "CancellationError")
      #expect(try others.map { try $0.join() } == [0, 1])
      #expect(channel.tryReceive().name == "3")
    }
    #expect(dropped.all == ["2"])
  }

  @Test func `a channel that drops the newest may hold more than its capacity after values were put back`() async throws
  {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(.dropNewest(1)) { dropped("\($0)") }
      let batch = try batch(of: 0..<2, in: channel)
      batch.cancel()
      #expect(outcome { try batch.join() } == "CancellationError")
      #expect(channel.count == 2)
      #expect(channel.trySend(2) == .full)
      #expect(try channel.receive() == 0)
      #expect(channel.trySend(3) == .full)
      #expect(try channel.receive() == 1)
      #expect(channel.trySend(4) == .sent)
      #expect(try channel.receive() == 4)
    }
    #expect(dropped.all == [])
  }

  enum Told: CaseIterable, Sendable { case receive, receiveAll, tryReceive, select, iteration, waiting }

  @Test(arguments: Told.allCases)
  func `after a receiver was told the end, no value is put back`(told: Told) async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(4) { dropped("\($0)") }
      let batch = try batch(of: 1..<2, in: channel)
      let waiting = told == .waiting ? co_launch { try channel.receive() } : nil
      if waiting != nil { try co_yield() }
      batch.cancel()
      channel.close()
      switch told {
      case .receive: #expect(try channel.receive() == nil)
      case .receiveAll: #expect(try channel.receiveAll() == [])
      case .tryReceive: #expect(channel.tryReceive().name == "closed")
      case .select: #expect(try co_select { channel.onReceive { $0 } } == nil)
      case .iteration: try channel.forEach { _ in Issue.record() }
      // It waits behind the batch, so that what came back would be its own.
      case .waiting: break
      }
      #expect(outcome { try batch.join() } == "CancellationError")
      #expect(dropped.all == ["1"])
      if let waiting { #expect(try waiting.join() == nil) }
      #expect(channel.tryReceive().name == "closed")
    }
    #expect(dropped.all == ["1"])
  }

  @Test func `before a receiver is told the end, values are put back`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(4) { dropped("\($0)") }
      let batch = try batch(of: 1..<3, in: channel)
      batch.cancel()
      channel.close()
      #expect(outcome { try batch.join() } == "CancellationError")
      #expect(try channel.receiveAll() == [1, 2])
      #expect(try channel.receive() == nil)
    }
    #expect(dropped.all == [])
  }
}
