import Testing

@testable import Coroutine

/// A channel holds more than its limit after `insist`, which delivers an actor's notices, and after a cancelled receive
/// has put back its values.
@Suite("A channel over its limit loses nothing", .timeLimit(.minutes(10)))
struct ChannelOverLimitTests {
  @Test(arguments: [8, 20_000])
  func `when a send drops its oldest value`(limit: Int) async throws {
    let dropped = Locked<[Int]>([])
    let channel = Channel<Int>(.dropOldest(limit)) { value in dropped.withLock { $0.append(value) } }
    for value in 0..<limit { #expect(channel.trySend(value) == .sent) }
    // Its memory is full too, so that the next value finds no room before another has left.
    var next = limit
    while channel.count < limit * 2 || channel.state.ring.room > 0 {
      #expect(channel.insist(next))
      next += 1
    }
    #expect(channel.trySend(next) == .sent)
    #expect(dropped.current == [0])
    let received = try await onSerialQueue { try channel.receiveAll() }
    #expect(received == Array(1...next))
  }

  @Test(arguments: [0, 1, 20_000])
  func `when senders wait: their values follow the promised ones`(limit: Int) async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(.bounded(limit))
      for value in 0..<limit { #expect(channel.trySend(value) == .sent) }
      let senders = (0..<50).map { value in co_launch { try channel.send(limit + 100 + value) } }
      try co_yield()
      for value in 0..<100 { #expect(channel.insist(limit + value)) }
      #expect(channel.count == limit + 100)
      for value in 0..<limit + 150 { #expect(try channel.receive() == value) }
      for sender in senders { try sender.join() }
      #expect(channel.count == 0)
    }
  }

  @Test(arguments: [Channel<Int>.Capacity.dropNewest(2), .unbounded])
  func `when it accepts any number of values, or drops the sent one`(_ capacity: Channel<Int>.Capacity) async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(capacity)
      for value in 0..<1_000 { #expect(channel.insist(value)) }
      let isFull = channel.trySend(1_000) == .full
      #expect(isFull == (channel.state.limit == 2))
      let received = try channel.receiveAll()
      #expect(received == Array(0..<(isFull ? 1_000 : 1_001)))
    }
  }

  @Test func `and a closed one accepts no promised value`() {
    let channel = Channel<Int>(.unbounded)
    channel.close()
    #expect(!channel.insist(1))
    #expect(channel.count == 0)
  }

  @Test(arguments: [Channel<Int>.Capacity.rendezvous, .bounded(4), .bounded(20_000), .dropNewest(4), .unbounded])
  func `when values come back again and again, for which it needs no more memory`(
    _ capacity: Channel<Int>.Capacity
  ) async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(capacity)
      for value in 0..<20 { #expect(channel.insist(value)) }
      for _ in 0..<100 {
        let batch = co_launch { try channel.receive(count: 100) }
        try co_yield()
        #expect(channel.count == 0)
        batch.cancel()
        #expect(outcome { try batch.join() } == "CancellationError")
        #expect(channel.count == 20)
      }
      #expect(channel.state.ring.capacity <= max(32, channel.state.limit == 20_000 ? 8_192 : 0))
      #expect(try channel.receiveAll() == Array(0..<20))
    }
  }

  @Test func `when values come back before others, and to memory that is full`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(.bounded(8))
      for value in 0..<7 { #expect(channel.trySend(value) == .sent) }
      let batch = co_launch { try channel.receive(count: 8) }
      try co_yield()
      batch.cancel()
      // The batch has not run since: these come before its values are put back.
      for value in 7..<15 { #expect(channel.trySend(value) == .sent) }
      let senders = (15..<18).map { value in co_launch { try channel.send(value) } }
      #expect(outcome { try batch.join() } == "CancellationError")
      try co_yield()
      #expect(channel.count == 15)
      for value in 0..<18 { #expect(try channel.receive() == value) }
      for sender in senders { try sender.join() }
    }
  }

  @Test func `and a larger memory replaces a smaller one only`() {
    var ring = Ring<Int>(capacity: 16)
    for value in 0..<16 { ring.append(value) }
    for value in 16..<24 {
      #expect(ring.removeFirst() == value - 16)
      ring.append(value)
    }
    // Memory that comes too late, because another thread has made the ring larger meanwhile.
    var late = Ring<Int>(capacity: 16)
    ring.exchange(with: &late)
    #expect(ring.count == 16 && late.count == 0)
    var larger = Ring<Int>(capacity: 17)
    ring.exchange(with: &larger)
    #expect(ring.capacity == 32 && ring.room == 16 && larger.capacity == 16 && larger.count == 0)
    for value in 8..<24 { #expect(ring.removeFirst() == value) }
  }
}
