import Coroutine
import Testing

@Suite("Channel: iteration", .timeLimit(.minutes(10)))
struct ChannelIterationTests {
  @Test func `forEach returns when all values are received and the channel was closed without a cause`() async throws {
    let received = try await onSerialQueue {
      let channel = Channel<Int>()
      co_launch {
        for value in 1...3 { try channel.send(value) }
        channel.close()
      }
      var received: [Int] = []
      try channel.forEach { received.append($0) }
      return received
    }
    #expect(received == [1, 2, 3])
  }

  @Test func `forEach throws the cause of the close, after the last value`() async throws {
    let seen = try await onSerialQueue {
      let channel = Channel<Int>(.unbounded)
      for value in 1...3 { try channel.send(value) }
      channel.close(Oops("broken off"))
      var received: [Int] = []
      let end = outcome { try channel.forEach { value in received.append(value) } }
      return "\(received) \(end)"
    }
    #expect(seen == "[1, 2, 3] Oops(broken off)")
  }

  @Test func `forEach throws the cancellation, also its reason, and loses no value`() async throws {
    let seen = try await onSerialQueue {
      let (channel, trace) = (Channel<Int>(.unbounded), Trace())
      let jobs = [nil, Oops("reason")].map { reason in
        let job = co_launch {
          try channel.forEach { value in trace("\(value)") }
          trace("a part passed for the whole")
        }
        return (job, reason)
      }
      try channel.send(1)
      try co_yield()
      for (job, reason) in jobs {
        job.cancel(reason)
        trace(outcome { try job.join() })
      }
      try channel.send(2)
      return trace.all + ["\(channel.count)"]
    }
    #expect(seen == ["1", "CancellationError", "Oops(reason)", "1"])
  }

  @Test func `forEach throws the error of its body, and leaves the other values in the channel`() async throws {
    let seen = try await onSerialQueue {
      let channel = Channel<Int>(.unbounded)
      for value in 1...3 { try channel.send(value) }
      let end = outcome { try channel.forEach { value in if value == 2 { throw Oops("\(value)") } } }
      return "\(end) \(channel.count)"
    }
    #expect(seen == "Oops(2) 1")
  }

  @Test func `forEach throws outside a coroutine`() {
    #expect(outcome { try Channel<Int>().forEach { _ in } } == "notInCoroutine")
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

  @Test func `the cause is thrown in async code`() async throws {
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
    // In either order, both get one value.
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
