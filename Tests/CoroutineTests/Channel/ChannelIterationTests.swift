import Coroutine
import Testing

@Suite("Channel: iteration", .timeLimit(.minutes(1)))
struct ChannelIterationTests {
  @Test func `in a coroutine for-in ends at the close, whatever the cause`() async throws {
    let received = try await onSerialQueue {
      let channel = Channel<Int>()
      co_launch {
        for value in 1...3 { try channel.send(value) }
        channel.close(Oops())
      }
      var received: [Int] = []
      for value in channel { received.append(value) }
      return received
    }
    #expect(received == [1, 2, 3])
  }

  @Test func `it ends at cancellation, which the next suspension throws`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      let trace = Trace()
      let job = co_launch {
        for value in channel { trace("\(value)") }
        trace("after")
        try co_yield()
        trace("never")
      }
      try co_yield()
      try channel.send(1)
      try co_yield()
      job.cancel()
      #expect(outcome { try job.join() } == "CancellationError")
      #expect(trace.all == ["1", "after"])
    }
  }

  @Test func `async code iterates too`() async throws {
    let channel = Channel<Int>(2)
    co_launch {
      for value in 1...100 { try channel.send(value) }
      channel.close()
    }
    var sum = 0
    for try await value in channel { sum += value }
    #expect(sum == 5_050)
  }

  @Test func `async code gets the cause thrown`() async throws {
    let channel = Channel<Int>()
    let job = co_launch {
      try channel.send(1)
      channel.close(Oops("cause"))
    }
    var received: [Int] = []
    let end = await asyncOutcome { for try await value in channel { received.append(value) } }
    #expect(end == "Oops(cause)")
    #expect(received == [1])
    try await job.value
  }

  @Test func `async receivers and coroutines wait in one queue`() async throws {
    let channel = Channel<Int>()
    let queue = taggedQueue("one queue")
    let task = Task {
      var iterator = channel.makeAsyncIterator()
      return try await iterator.next()
    }
    let rest = co_launch(on: queue) { try channel.receive() }
    // Whoever comes first: both get one value.
    try await onCoroutine {
      try channel.send(1)
      try channel.send(2)
    }
    let (first, second) = (try await task.value, try await rest.value)
    #expect([first, second].compactMap(\.self).sorted() == [1, 2])
  }

  @Test func `a cancelled Task loses no value`() async throws {
    let channel = Channel<Int>(8)
    let task = Task {
      var sum = 0
      for try await value in channel { sum += value }
      return sum
    }
    task.cancel()
    #expect(await asyncOutcome { try await task.value } == "CancellationError")
    #expect(channel.trySend(1) == .sent)
    #expect(channel.tryReceive().name == "1")
    // Of many more, each cancelled at some point of its wait, every value is received or still there.
    let received = Locked(0)
    for value in 0..<200 {
      let task = Task {
        var iterator = channel.makeAsyncIterator()
        if try await iterator.next() != nil { received.withLock { $0 += 1 } }
      }
      if value % 3 == 0 { await Task.yield() }
      async let sending = onCoroutine { channel.trySend(value) }
      task.cancel()
      let sent = try await sending
      _ = try? await task.value
      #expect(sent == .sent)
      if case .received = channel.tryReceive() { received.withLock { $0 += 1 } }
      #expect(received.current == value + 1)
    }
  }
}
