import Coroutine
import Testing

@Suite("Channel: functions that never wait", .timeLimit(.minutes(10)))
struct ChannelTryTests {
  @Test func `the try functions work outside a coroutine`() {
    let channel = Channel<Int>(2)
    #expect(channel.tryReceive().name == "empty")
    #expect(channel.trySend(1) == .sent)
    #expect(channel.trySend(2) == .sent)
    #expect(channel.trySend(3) == .full)
    #expect(channel.tryReceive().name == "1")
    channel.close()
    #expect(channel.trySend(4) == .closed)
    #expect(channel.tryReceive().name == "2")
    #expect(channel.tryReceive().name == "closed")
  }

  @Test func `trySend reaches a waiting receiver, tryReceive a waiting sender`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      #expect(channel.trySend(0) == .full)
      let receiver = co_launch { try channel.receive() }
      try co_yield()
      #expect(channel.trySend(1) == .sent)
      #expect(try receiver.join() == 1)
      let sender = co_launch { try channel.send(2) }
      try co_yield()
      #expect(channel.tryReceive().name == "2")
      try sender.join()
    }
  }

  @Test func `a thread wakes a coroutine`() async throws {
    let channel = Channel<Int>()
    let sum = co_launch {
      var sum = 0
      try channel.forEach { sum += $0 }
      return sum
    }
    try await onOwnThread {
      for value in 1...100 { while channel.trySend(value) != .sent {} }
      channel.close()
    }
    #expect(try await sum.value == 5_050)
  }

  @Test func `a value that trySend refuses does not reach the hook`() {
    let dropped = Trace()
    let channel = Channel<Int>(.dropNewest(1)) { dropped("\($0)") }
    #expect(channel.trySend(1) == .sent)
    #expect(channel.trySend(2) == .full)
    channel.close()
    #expect(channel.trySend(3) == .closed)
    #expect(dropped.all == [])
  }

  @Test func `a full channel that drops its oldest takes the newest`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(.dropOldest(2)) { dropped("\($0)") }
      for value in 0..<5 { try channel.send(value) }
      #expect(channel.trySend(5) == .sent)
      #expect(channel.count == 2)
      #expect(try channel.receiveAll() == [4, 5])
    }
    #expect(dropped.all == ["0", "1", "2", "3"])
  }

  @Test func `a full channel that drops its newest drops the sent value`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(.dropNewest(2)) { dropped("\($0)") }
      for value in 0..<5 { try channel.send(value) }
      #expect(try channel.receiveAll() == [0, 1])
    }
    #expect(dropped.all == ["2", "3", "4"])
  }

  @Test func `a waiting receiver gets the value that is sent to a dropping channel`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(.dropOldest(1))
      let receiver = co_launch { try channel.receive() }
      try co_yield()
      try channel.send(1)
      try channel.send(2)
      #expect(try receiver.join() == 1)
      #expect(try channel.receive() == 2)
    }
  }
}
