import Coroutine
import Testing

@Suite("Channel: cancellation", .timeLimit(.minutes(10)))
struct ChannelCancellationTests {
  @Test func `a waiting receiver is cancelled with its reason, and no value is lost`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      let first = co_launch { outcome { try channel.receive() } }
      let second = co_launch { outcome { try channel.receive() } }
      try co_yield()
      first.cancel(Oops("enough"))
      try channel.send(1)
      #expect(try first.join() == "Oops(enough)")
      #expect(try second.join() == "Optional(1)")
    }
  }

  @Test func `a waiting sender is cancelled, and its value reaches the hook`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int> { dropped("\($0)") }
      let first = co_launch { outcome { try channel.send(1) } }
      let second = co_launch { outcome { try channel.send(2) } }
      try co_yield()
      first.cancel()
      #expect(try channel.receive() == 2)
      #expect(try first.join() == "CancellationError")
      #expect(try second.join() == "()")
    }
    #expect(dropped.all == ["1"])
  }

  @Test func `a receiver that is cancelled after the delivery has its value`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      let job = co_launch { outcome { try channel.receive() } }
      try co_yield()
      try channel.send(1)
      job.cancel()
      #expect(try job.join() == "Optional(1)")
    }
  }

  @Test func `every verb of a cancelled coroutine throws on entry, even if it need not wait`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(4) { dropped("\($0)") }
      try channel.send(1)
      let job = co_launch {
        try? waitForCancellation()
        return [
          outcome { try channel.send(2) },
          outcome { try channel.receive() },
          outcome { try channel.receiveAll() },
          outcome { try channel.receive(count: 0) },
          outcome { try co_select { channel.onReceive { _ in 1 } } },
          outcome { try channel.forEach { _ in } },
        ]
      }
      try co_yield()
      job.cancel()
      #expect(try job.join() == Array(repeating: "CancellationError", count: 6))
      #expect(channel.count == 1)
    }
    #expect(dropped.all == ["2", "1"])
  }

  @Test func `outside a coroutine every waiting verb throws, and a sent value reaches the hook`() {
    let dropped = Trace()
    let channel = Channel<Int>(4) { dropped("\($0)") }
    #expect(outcome { try channel.send(1) } == "notInCoroutine")
    #expect(outcome { try channel.receive() } == "notInCoroutine")
    #expect(outcome { try channel.receiveAll() } == "notInCoroutine")
    #expect(outcome { try channel.receive(count: 1) } == "notInCoroutine")
    #expect(outcome { try co_select { channel.onReceive { _ in 1 } } } == "notInCoroutine")
    #expect(dropped.all == ["1"])
  }

  @Test(.inWorlds) func `a deadline ends the wait, and a shield hides the cancellation`() throws {
    let channel = Channel<Int>()
    #expect(outcome { try co_timeout(.milliseconds(1)) { try channel.receive() } } == "TimeoutError")
    let job = co_launch { co_shield { outcome { try channel.receive() } } }
    try settleWorld()
    job.cancel()
    try settleWorld()
    try channel.send(3)
    #expect(outcome { try job.join() } == "Optional(3)")
  }

  @Test func `a dump shows a coroutine that waits in a channel`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      let jobs = [
        co_launch(name: "waits in a channel") { _ = try channel.receive() },
        co_launch(name: "waits in a select") { try co_select { channel.onReceive { _ in } } },
      ]
      try co_yield()
      let lines = dumpOfOwnQueue().split(separator: "\n")
      #expect(lines.contains { $0.contains("\"waits in a channel\" waiting to receive (Channel<Int> 0x") })
      #expect(lines.contains { $0.contains("\"waits in a select\" waiting in a select (1 case: receive from Cha") })
      for job in jobs { job.cancel() }
    }
  }
}
