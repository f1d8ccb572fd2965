import Coroutine
import Testing

@Suite("Channel: closing", .timeLimit(.minutes(10)))
struct ChannelCloseTests {
  @Test func `close returns true once and false afterwards`() {
    let channel = Channel<Int>()
    #expect(!channel.isClosed)
    #expect(channel.close())
    #expect(channel.isClosed)
    #expect(!channel.close(Oops("late")))
    channel.cancel(Oops("later"))
    #expect(channel.tryReceive().name == "closed")
  }

  @Test func `buffered values stay receivable, then every receive returns nil`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(3)
      for value in 1...3 { try channel.send(value) }
      channel.close()
      #expect(try channel.receiveAll() == [1, 2, 3])
      #expect(try channel.receive() == nil)
      #expect(try channel.receive() == nil)
      #expect(try channel.receiveAll() == [])
      #expect(try channel.receive(count: 2) == [])
    }
  }

  @Test func `receivers throw the cause once the buffer is drained`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(3)
      try channel.send(1)
      channel.close(Oops("cause"))
      #expect(try channel.receive(count: 2) == [1])
      #expect(outcome { try channel.receive() } == "Oops(cause)")
      #expect(outcome { try channel.receive(count: 1) } == "Oops(cause)")
      #expect(outcome { try channel.receiveAll() } == "Oops(cause)")
    }
  }

  @Test(arguments: [false, true])
  func `a close wakes waiting receivers`(hasCause: Bool) async throws {
    let outcomes = try await onSerialQueue {
      let channel = Channel<Int>()
      let jobs = (0..<3).map { _ in co_launch { outcome { try channel.receive() } } }
      try co_yield()
      channel.close(hasCause ? Oops("cause") : nil)
      return try jobs.map { try $0.join() }
    }
    #expect(outcomes == Array(repeating: hasCause ? "Oops(cause)" : "nil", count: 3))
  }

  @Test func `waiting senders fail, and their values have reached the hook when close returns`() async throws {
    let dropped = Trace()
    let outcomes = try await onSerialQueue {
      let channel = Channel<Int>(1) { dropped("\($0)") }
      let jobs = (0..<3).map { value in co_launch { outcome { try channel.send(value) } } }
      try co_yield()
      channel.close(Oops("cause"))
      #expect(dropped.all == ["1", "2"])
      #expect(try channel.receiveAll() == [0])
      return try jobs.map { try $0.join() }
    }
    #expect(outcomes == ["()", "ChannelClosedError", "ChannelClosedError"])
    #expect(dropped.all == ["1", "2"])
  }

  @Test func `a send after the close throws with the cause, and the value reaches the hook`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(1) { dropped("\($0)") }
      channel.close(Oops("cause"))
      let error = #expect(throws: ChannelClosedError.self) { try channel.send(5) }
      #expect(error?.cause as? Oops == Oops("cause"))
      #expect(channel.trySend(6) == .closed)
    }
    #expect(dropped.all == ["5"])
  }

  @Test func `cancel drops buffered values, also after a close`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(2) { dropped("\($0)") }
      try channel.send(1)
      try channel.send(2)
      let waiting = co_launch { outcome { try channel.send(3) } }
      try co_yield()
      channel.cancel()
      #expect(channel.count == 0)
      #expect(try waiting.join() == "ChannelClosedError")
      #expect(try channel.receive() == nil)

      let closed = Channel<Int>(2) { dropped("again \($0)") }
      try closed.send(4)
      closed.close()
      closed.cancel(Oops("too late to be the cause"))
      #expect(try closed.receive() == nil)
    }
    #expect(dropped.all == ["1", "2", "3", "again 4"])
  }

  @Test func `the values left in the buffer at the end of the channel reach the hook in order`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(4) { dropped("\($0)") }
      for value in 0..<3 { try channel.send(value) }
      #expect(try channel.receive() == 0)
    }
    #expect(dropped.all == ["1", "2"])
  }

  @Test func `the hook may use the channel: no lock is held`() async throws {
    let late = Trace()
    try await onSerialQueue {
      let second = Channel<Int>(8)
      let channel = Channel<Int>(.dropOldest(1)) { _ = second.trySend($0) }
      for value in 0..<4 { try channel.send(value) }
      channel.cancel()
      second.close()
      while let value = try second.receive() { late("\(value)") }
    }
    #expect(late.all == ["0", "1", "2", "3"])
  }

  @Test func `when a send fails, the hook has received its value, whichever thread closes`() async throws {
    let queue = taggedQueue("sender")
    for round in 0..<500 {
      let dropped = Locked<[Int]>([])
      let channel = Channel<Int> { value in dropped.withLock { $0.append(value) } }
      let (parked, seen) = (Gate(), Locked<[Int]>([]))
      let sender = co_launch(on: queue) {
        // It runs until the wait in the channel, so later code of the queue finds it parked.
        co_launch { parked.open() }
        do { try channel.send(round) } catch is ChannelClosedError { seen.current = dropped.current }
      }
      try await onCoroutine {
        try parked.pass()
        channel.close()
      }
      try await sender.value
      #expect(seen.current == [round])
    }
  }

  @Test func `closing on another thread wakes the waiters`() async throws {
    let channel = Channel<Int>()
    let job = co_launch { outcome { try channel.receive() } }
    try await onOwnThread { _ = channel.close() }
    #expect(try await job.value == "nil")
  }
}

extension TryReceive {
  /// As a text that tests compare.
  var name: String {
    switch self {
    case .received(let value): "\(value)"
    case .empty: "empty"
    case .closed: "closed"
    }
  }
}
