import Coroutine
import Testing

@Suite("Selects with many cases", .timeLimit(.minutes(10)))
struct SelectSizeTests {
  @Test(.inWorlds) func `240 cases work, and more throw and commit nothing`() throws {
    let channel = Channel<Int>(1)
    try channel.send(1)
    let seen = failure { try co_select { for _ in 0..<241 { channel.onReceive { _ in } } } }
    #expect(seen as? CoroutineError == .tooManyCases && (seen as? CoroutineError)?.number == 241)
    #expect("\(seen!)".contains("at most 240 cases, not 241"))
    #expect(channel.count == 1)
    let received = try co_select { for _ in 0..<240 { channel.onReceive { $0 } } }
    #expect(received == 1)
  }

  private func failure<Output>(_ body: () throws -> Output) -> (any Error)? {
    do {
      _ = try body()
      return nil
    } catch {
      return error
    }
  }
}

@Suite("co_select", .timeLimit(.minutes(10)))
struct SelectTests {
  @Test func `takes the case that is ready`() async throws {
    try await onSerialQueue {
      let ints = Channel<Int>(1)
      let texts = Channel<String>(1)
      let select = {
        try co_select {
          ints.onReceive { "int \($0 ?? -1)" }
          texts.onReceive { "text \($0 ?? "-")" }
        }
      }
      try ints.send(1)
      #expect(try select() == "int 1")
      try texts.send("a")
      #expect(try select() == "text a")
    }
  }

  @Test func `waits for the first case that becomes ready`() async throws {
    try await onSerialQueue {
      let ints = Channel<Int>()
      let texts = Channel<String>()
      let out = Channel<Int>()
      let select = {
        co_launch {
          try co_select {
            ints.onReceive { "int \($0 ?? -1)" }
            texts.onReceive { "text \($0 ?? "-")" }
            out.onSend(7) { "sent" }
          }
        }
      }
      var job = select()
      try co_yield()
      try ints.send(1)
      #expect(try job.join() == "int 1")
      job = select()
      try co_yield()
      try texts.send("a")
      #expect(try job.join() == "text a")
      job = select()
      try co_yield()
      #expect(try out.receive() == 7)
      #expect(try job.join() == "sent")
    }
  }

  @Test func `an unselected case leaves no waiter and keeps its value`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let winner = Channel<Int>()
      let losing = Channel<Int> { dropped("\($0)") }
      let job = co_launch {
        try co_select {
          winner.onReceive { $0 }
          losing.onSend(5) { -1 }
          losing.onReceive { _ in -2 }
        }
      }
      try co_yield()
      try winner.send(1)
      #expect(try job.join() == 1)
      #expect(losing.trySend(2) == .full)
      #expect(losing.tryReceive().name == "empty")
    }
    #expect(dropped.all == [])
  }

  @Test func `a closed channel is ready`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let plain = Channel<Int>()
      let caused = Channel<Int> { dropped("\($0)") }
      plain.close()
      caused.close(Oops("cause"))
      #expect(outcome { try co_select { plain.onReceive { $0 } } } == "nil")
      #expect(outcome { try co_select { caused.onReceive { $0 } } } == "Oops(cause)")
      #expect(outcome { try co_select { caused.onSend(1) {} } } == "ChannelClosedError")
    }
    #expect(dropped.all == ["1"])
  }

  @Test func `closing ends the wait`() async throws {
    let dropped = Trace()
    try await onSerialQueue {
      let channel = Channel<Int> { dropped("\($0)") }
      let never = Channel<Int>()
      let jobs = [
        co_launch {
          outcome {
            try co_select {
              channel.onReceive { $0 }
              never.onReceive { $0 }
            }
          }
        },
        co_launch {
          outcome {
            try co_select {
              channel.onSend(1) {}
              Channel<Int>().onSend(2) {}
            }
          }
        },
      ]
      try co_yield()
      // The two can match here: the first receives, the second sends.
      #expect(try jobs.map { try $0.join() } == ["Optional(1)", "()"])
      let sending = co_launch {
        outcome {
          try co_select {
            channel.onSend(3) {}
            never.onSend(4) {}
          }
        }
      }
      try co_yield()
      channel.close(Oops("cause"))
      #expect(try sending.join() == "ChannelClosedError")
    }
    #expect(dropped.all == ["3"])
  }

  @Test func `a send and a receive on one channel in one select never match each other`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      let select = {
        co_launch {
          try co_select {
            channel.onSend(1) { "sent" }
            channel.onReceive { "received \($0 ?? -1)" }
          }
        }
      }
      let alone = select()
      try co_yield()
      #expect(!alone.isFinished)
      try channel.send(2)
      #expect(try alone.join() == "received 2")
      let again = select()
      try co_yield()
      #expect(try channel.receive() == 1)
      #expect(try again.join() == "sent")
      // Two selects match each other.
      let pair = [select(), select()]
      #expect(try pair.map { try $0.join() }.sorted() == ["received 1", "sent"])
    }
  }

  @Test func `operands are evaluated once, in order, and the body runs after`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let channel = Channel<Int>(1)
      let named = { (name: String) -> Channel<Int> in
        trace(name)
        return channel
      }
      let value = { () -> Int in
        trace("value")
        return 3
      }
      try co_select(biased: true) {
        named("first").onReceive { _ in trace("received") }
        named("second").onSend(value()) { trace("sent") }
      }
    }
    #expect(trace.all == ["first", "second", "value", "sent"])
  }

  @Test func `cases can be omitted by if, switch and for`() async throws {
    try await onSerialQueue {
      let channels = (0..<10).map { _ in Channel<Int>(1) }
      for (index, channel) in channels.enumerated() { try channel.send(index) }
      let choose = { (wanted: Int?, all: Bool) -> Int? in
        try co_select {
          if let wanted { channels[wanted].onReceive { $0 } }
          if all {
            for channel in channels { channel.onReceive { $0 } }
          } else {
            SelectCase.otherwise { nil }
          }
        }
      }
      #expect(try choose(4, false) == 4)
      #expect(try choose(4, false) == nil)
      #expect(try choose(nil, false) == nil)
      var rest: [Int] = []
      for _ in 0..<9 { rest.append(try choose(nil, true) ?? -1) }
      #expect(rest.sorted() == [0, 1, 2, 3, 5, 6, 7, 8, 9])
    }
  }

  @Test func `cases made elsewhere can be selected again and again`() async throws {
    try await onSerialQueue { () throws -> Void in
      let channel = Channel<String>(2)
      let cases = [channel.onSend("a text that needs a reference count") { true }]
      for _ in 0..<2 { #expect(try co_select { cases }) }
      #expect(try co_select { return cases + [SelectCase.otherwise { false }] } == false)
      #expect(try channel.receiveAll() == Array(repeating: "a text that needs a reference count", count: 2))
    }
  }

  @SelectBuilder<Int>
  private func marked(_ channel: Channel<Int>, _ isPatient: Bool) -> [SelectCase<Int>] {
    channel.onReceive { $0 ?? -1 }
    if !isPatient { SelectCase.otherwise { -2 } }
  }

  @Test func `a function that is marked with the builder makes an array of cases`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(1)
      #expect(marked(channel, true).count == 1)
      #expect(try co_select { marked(channel, false) } == -2)
      try channel.send(7)
      #expect(try co_select { marked(channel, true) } == 7)
    }
  }

  @Test func `a body may throw, wait and select again`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>(1)
      #expect(outcome { try co_select { channel.onSend(1) { throw Oops("body") } } } == "Oops(body)")
      let sum = try co_select {
        channel.onReceive { first in
          try co_yield()
          return try co_select { channel.onSend(2) { first ?? 0 } }
        }
      }
      #expect(sum == 1)
      #expect(try channel.receive() == 2)
    }
  }

  @Test func `a select that is cancelled while it waits selects no case`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      let job = co_launch {
        try co_select {
          channel.onReceive { _ in }
          channel.onSend(1) {}
          SelectCase.onTimeout(.seconds(3_600)) {}
        }
      }
      try co_yield()
      job.cancel(Oops("enough"))
      #expect(outcome { try job.join() } == "Oops(enough)")
      #expect(channel.tryReceive().name == "empty")
      #expect(channel.trySend(1) == .full)
    }
  }

  @Test func `a select without cases waits until it is cancelled`() async throws {
    try await onSerialQueue {
      let job = co_launch { () throws -> Int in
        try co_select { if co_isCancelled { Channel<Int>().onReceive { $0 ?? 0 } } }
      }
      try co_yield()
      #expect(!job.isFinished)
      job.cancel(Oops("enough"))
      #expect(outcome { try job.join() } == "Oops(enough)")
    }
  }

  @Test func `an operand that cancels its own coroutine ends the select`() async throws {
    try await onSerialQueue {
      let channel = Channel<Int>()
      let cancelled = { (scope: Scope) -> Bool in
        scope.cancel(Oops("own"))
        return co_isCancelled
      }
      let ends = outcome {
        try co_scope { scope in
          try co_select {
            channel.onReceive { $0 }
            if cancelled(scope) { channel.onReceive { $0 } }
          }
        }
      }
      #expect(ends == "Oops(own)")
    }
  }
}
