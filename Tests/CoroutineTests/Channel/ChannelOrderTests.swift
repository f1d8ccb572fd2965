import Coroutine
import Dispatch
import Testing

@Suite("Channel: order", .timeLimit(.minutes(10)))
struct ChannelOrderTests {
  @Test(arguments: [0, 1, 2, 7, 100])
  func `values are received in the order in which they were sent`(capacity: Int) async throws {
    let received = try await onSerialQueue {
      let channel = Channel<Int>(.bounded(capacity))
      co_launch {
        for value in 0..<50 { try channel.send(value) }
        channel.close()
      }
      var received: [Int] = []
      try channel.forEach { received.append($0) }
      return received
    }
    #expect(received == Array(0..<50))
  }

  @Test func `waiting senders are served first come, first served`() async throws {
    let received = try await onSerialQueue {
      let channel = Channel<Int>()
      for value in 0..<5 { co_launch { try channel.send(value) } }
      try co_yield()
      return try channel.receive(count: 5)
    }
    #expect(received == [0, 1, 2, 3, 4])
  }

  @Test func `waiting receivers are served first come, first served`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>()
      let jobs = ["a", "b", "c"].map { name in co_launch { trace("\(name)\(try channel.receive() ?? -1)") } }
      try co_yield()
      for value in 1...3 { try channel.send(value) }
      for job in jobs { try job.join() }
    }
    #expect(trace.all == ["a1", "b2", "c3"])
  }

  @Test func `a hand-off never overtakes buffered values`() async throws {
    let received = try await onSerialQueue {
      let channel = Channel<Int>(2)
      for value in 0..<6 { co_launch { try channel.send(value) } }
      try co_yield()
      #expect(channel.count == 2)
      var received: [Int] = []
      for _ in 0..<6 { received.append(try channel.receive() ?? -1) }
      return received
    }
    #expect(received == [0, 1, 2, 3, 4, 5])
  }

  @Test func `the waker keeps running, and the woken coroutines run in the order of waking`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>()
      let jobs = (0..<2).map { name in
        co_launch {
          let value = try channel.receive() ?? -1
          trace("received \(value) in \(name)")
        }
      }
      try co_yield()
      for value in 7...8 {
        try channel.send(value)
        trace("sent \(value)")
      }
      for job in jobs { try job.join() }
    }
    #expect(trace.all == ["sent 7", "sent 8", "received 7 in 0", "received 8 in 1"])
  }

  @Test func `a rendezvous waits until a receiver has come`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>()
      let sender = co_launch {
        try channel.send(1)
        trace("sent")
      }
      try co_yield()
      trace("receiving")
      #expect(try channel.receive() == 1)
      try sender.join()
    }
    #expect(trace.all == ["receiving", "sent"])
  }

  @Test func `a bounded channel accepts its capacity and then makes senders wait`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(3)
      let sender = co_launch { for value in 0..<5 { try channel.send(value) } }
      try co_yield()
      #expect(channel.count == 3)
      #expect(!sender.isFinished)
      #expect(try channel.receive() == 0)
      #expect(channel.count == 3)
      #expect(try channel.receive() == 1)
      try sender.join()
      #expect(channel.count == 3)
    }
  }

  @Test func `an unbounded channel never makes a sender wait`() async throws {
    let sum = try await onSerialQueue {
      let channel = Channel<Int>(.unbounded)
      for value in 0..<10_000 { try channel.send(value) }
      #expect(channel.count == 10_000)
      return try channel.receiveAll().reduce(0, +)
    }
    #expect(sum == 49_995_000)
  }

  @Test func `queues, workers and threads share a channel`() async throws {
    let channel = Channel<Int>(4)
    let total = Locked(0)
    let consumers = (0..<4).map { index in
      co_launch(on: index < 2 ? taggedQueue("consumer") : nil) {
        while let value = try channel.receive() { total.withLock { $0 += value } }
      }
    }
    let producers = (0..<4).map { index in
      co_launch(on: index < 2 ? taggedQueue("producer") : nil) { for value in 1...500 { try channel.send(value) } }
    }
    let byThread: Int = try await onOwnThread {
      var sent = 0
      for value in 1...500 where channel.trySend(value) == .sent { sent += value }
      return sent
    }
    for producer in producers { try await producer.value }
    channel.close()
    for consumer in consumers { try await consumer.value }
    #expect(total.current == 4 * 125_250 + byThread)
  }
}
