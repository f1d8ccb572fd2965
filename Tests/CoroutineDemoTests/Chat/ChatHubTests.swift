#if Demo
import Coroutine
import CoroutineTesting
import Dispatch
import Testing

@testable import CoroutineDemo

/// The hub with outboxes that the test reads, or does not read, in place of connections.
@Suite(.timeLimit(.minutes(10))) struct `The hub of a chat` {
  /// Launches a hub, and runs `body` in a coroutine; returns what the hub has counted.
  @discardableResult
  private static func withHub(
    backlog: Int = 256,
    _ body: (ActorRef<ChatEvent>) throws -> Void
  ) throws -> ChatTally {
    var options = ChatOptions()
    (options.backlog, options.limit) = (backlog, 10_000)
    let tally = Promise<ChatTally>()
    let hub = ChatHub.launch(options, tally: tally)
    defer { hub.stop() }
    try body(hub)
    hub.stop()
    return try co_await(tally)
  }

  /// A client that is in the room tea, with an outbox of this capacity.
  private static func enter(_ id: Int, _ hub: ActorRef<ChatEvent>, capacity: Int) throws -> Outbox {
    let outbox = Outbox(capacity: capacity)
    try hub.tell(.entered(id, outbox))
    try hub.tell(.line(id, "/join tea"))
    return outbox
  }

  /// What a client gets up to the end, and the reason of the end.
  private static func read(_ outbox: Outbox) throws -> (lines: [String], ending: ChatEnding?) {
    var lines: [String] = []
    do {
      while let line = try outbox.receive() { lines.append(String(decoding: line.dropLast(), as: UTF8.self)) }
      return (lines, nil)
    } catch let ending as ChatEnding {
      return (lines, ending)
    }
  }

  @Test func `a thousand clients that do not read are sent away at once, each with all lines up to a certain one`()
    async throws
  {
    let count = 1_000
    try await onCoroutine {
      var outboxes: [Outbox] = []
      let tally = try Self.withHub { hub in
        for id in 1...count {
          // Room for the welcome, and for each notice of a client that joins: one line more is too much for all.
          outboxes.append(try Self.enter(id, hub, capacity: 1 + count - (id - 1)))
        }
        try hub.tell(.line(1, "too much"))
      }
      let lines = count + count * (count + 1) / 2
      #expect(tally == ChatTally(clients: count, mostAtOnce: count, lines: lines, tooSlow: count))
      for (index, outbox) in outboxes.enumerated() {
        let (lines, ending) = try Self.read(outbox)
        #expect(ending == .tooSlow(backlog: 256))
        // The welcome, and all who have joined from this one on; not the line that was too much.
        #expect(lines.count == 1 + count - index)
        #expect(lines[1] == "* guest-\(index + 1) has joined tea." && lines.last == "* guest-\(count) has joined tea.")
      }
    }
  }

  /// Each notice is one line too much for the next client.
  @Test func `clients that are sent away one after the other do not deepen the stack`() async throws {
    let count = 700
    try await onCoroutine {
      let tally = try Self.withHub { hub in
        // Client 1 has room for the welcome and all joins. Each later client gets a join less, and takes a line more.
        for id in 1...count { _ = try Self.enter(id, hub, capacity: 1 + count) }
        try hub.tell(.line(count, "too much"))
      }
      #expect((tally.clients, tally.tooSlow) == (count, count))
    }
  }

  @Test func `two clients that do not read are counted once each`() async throws {
    try await onCoroutine {
      var outboxes: [Outbox] = []
      let tally = try Self.withHub { hub in
        let speaker = try Self.enter(1, hub, capacity: 1_000)
        // The same message is too much for both.
        for (id, capacity) in [(2, 10), (3, 9)] { outboxes.append(try Self.enter(id, hub, capacity: capacity)) }
        for number in 0..<20 { try hub.tell(.line(1, "\(number)")) }
        try hub.tell(.ended(1, .quit))
        let (heard, ending) = try Self.read(speaker)
        #expect(ending == .quit)
        #expect(heard.filter { $0.hasPrefix("guest-1: ") } == (0..<20).map { "guest-1: \($0)" })
        #expect(heard.filter { $0.contains(" left ") } == ["* guest-2, guest-3 have left (too slow)."])
      }
      #expect(tally.tooSlow == 2)
      for (outbox, notices) in zip(outboxes, [3, 2]) {
        let (lines, ending) = try Self.read(outbox)
        #expect(ending == .tooSlow(backlog: 256))
        #expect(Array(lines.dropFirst(notices)) == (0..<7).map { "guest-1: \($0)" })
      }
    }
  }

  @Test(.simulated(.random(seeds: 50)))
  func `what a slow reader gets is a beginning of what the room gets, without a gap`() throws {
    let tally = try Self.withHub(backlog: 4) { hub in
      let all = try Self.enter(1, hub, capacity: 10_000)
      let isOver = Promise<Void>()
      let readers = try (2...6).map { id in
        let outbox = try Self.enter(id, hub, capacity: 4)
        return co_launch {
          var lines: [String] = []
          do {
            while let line = try outbox.receive() {
              lines.append(String(decoding: line.dropLast(), as: UTF8.self))
              for _ in 0..<id where lines.count > 8 { try co_yield() }
              // One that does not go on reading.
              if id == 6, lines.count > 8 { try co_await(isOver) }
            }
          } catch is ChatEnding {}
          return lines
        }
      }
      for number in 0..<40 {
        try hub.tell(.line(1, "\(number)"))
        // Changes of rooms are two lines at once.
        if number % 7 == 0 { try hub.tell(.line(2 + number % 5, number % 2 == 0 ? "/nick n\(number)" : "/who")) }
        try co_yield()
      }
      try hub.tell(.closing)
      isOver.fulfill(())
      let room = try Self.read(all).lines
      for reader in readers {
        // Answers to the reader alone are none of the room's.
        let lines = try reader.join().filter { !$0.hasPrefix("* Welcome") && !$0.hasPrefix("* tea: ") }
        guard let first = lines.first else { continue }
        let start = try #require(room.firstIndex(of: first))
        #expect(Array(room[start...].prefix(lines.count)) == lines)
      }
    }
    #expect(tally.tooSlow >= 1)
  }

  @Test(.simulated(.inOrder))
  func `a client that reads stays, however many others are sent away at once`() throws {
    let count = 300
    let tally = try Self.withHub(backlog: 256) { hub in
      let prompt = try Self.enter(1, hub, capacity: 256)
      let reader = co_launch { try Self.read(prompt) }
      for id in 2...count { _ = try Self.enter(id, hub, capacity: 1 + count - (id - 1)) }
      try hub.tell(.line(1, "too much"))
      try hub.tell(.line(1, "/who"))
      try hub.tell(.ended(1, .quit))
      let (lines, ending) = try reader.join()
      #expect(ending == .quit)
      #expect(lines.filter { $0.contains(" left ") }.count == 1)
      #expect(lines.last == "* tea: guest-1")
    }
    #expect(tally.tooSlow == count - 1)
  }

  @Test(.simulated(.inOrder))
  func `a client that reads stays, however many others go in a row`() throws {
    let count = 200
    let tally = try Self.withHub(backlog: 20) { hub in
      let prompt = try Self.enter(1, hub, capacity: 20)
      let reader = co_launch { try Self.read(prompt) }
      for id in 2...count { _ = try Self.enter(id, hub, capacity: 10_000) }
      // All of them are in the mailbox before the hub runs.
      for id in 2...count { try hub.tell(.ended(id, .gone)) }
      try hub.tell(.ended(1, .quit))
      let (lines, ending) = try reader.join()
      #expect(ending == .quit)
      #expect(lines.filter { $0.hasSuffix(" has left (gone).") }.count == count - 1)
    }
    #expect(tally.tooSlow == 0)
  }

  @Test func `connections with more to say wait while the mailbox is full`() async throws {
    let queue = DispatchQueue(label: "hub")
    let tally = Promise<ChatTally>()
    let hub = try await co_launch(on: queue) { ChatHub.launch(ChatOptions(), tally: tally) }.value
    // On the queue, so not beside the hub. Then the hub does not run, and what it is told stays in its mailbox.
    queue.sync { queue.suspend() }
    var told = 0
    while told < 10_000, hub.tryTell(.longLine(1)) == .sent { told += 1 }
    queue.resume()
    // One event more if the hub is already waiting for it.
    #expect((1_024...1_025).contains(told))
    hub.stop()
    _ = try await tally.value
  }
}
#endif
