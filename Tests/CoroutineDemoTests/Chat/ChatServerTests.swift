#if Demo
import Coroutine
import CoroutineNet
import Glibc
import Testing

@testable import CoroutineDemo

/// The server over the loopback interface.
@Suite(.timeLimit(.minutes(10))) struct `A chat server` {
  @Test func `passes what is said in a room on to everybody there, and to nobody else`() async throws {
    try await onCoroutine {
      let tally = try withChat { address, _ in
        let alice = try ChatClient(at: address, "alice")
        let bob = try ChatClient(at: address, "bob")
        let carol = try ChatClient(at: address, "carol", in: "coffee")
        #expect(try alice.line() == "* bob has joined tea.")
        #expect(try bob.ask("hello") == "bob: hello")
        #expect(try alice.line() == "bob: hello")
        #expect(try alice.ask("/who") == "* tea: alice, bob")
        #expect(try carol.ask("/rooms") == "* coffee: 1")
        #expect(try carol.line() == "* tea: 2")
        #expect(try bob.ask("/quit") == "* Good-bye.")
        #expect(try bob.line() == nil)
        #expect(try alice.line() == "* bob has left.")
      }
      #expect((tally.clients, tally.mostAtOnce, tally.tooSlow) == (3, 3, 0))
    }
  }

  @Test func `everybody hears the messages of all in the same order`() async throws {
    try await onCoroutine {
      var options = ChatOptions()
      // All that can be said, so that nobody is too slow on a busy machine.
      options.backlog = 1_000
      try withChat(options) { address, _ in
        let clients = try (0..<8).map { try ChatClient(at: address, "c\($0)") }
        for client in clients.dropLast() { try client.skip(to: "* c7 has joined tea.") }
        let heard = try co_scope { scope in
          // Each client belongs to one coroutine, which reads, and lends its connection to one that writes.
          let readers = clients.enumerated().map { index, client in
            let connection = client.connection
            scope.launch {
              for number in 0..<50 { try connection.write("\(index) \(number)\n".utf8) }
            }
            let lent = Lent(client)
            return scope.launch { try (0..<400).map { _ in try lent.value.line() ?? "" } }
          }
          return try readers.map { try $0.join() }
        }
        for lines in heard { #expect(lines == heard[0]) }
        for index in 0..<8 {
          #expect(heard[0].filter { $0.hasPrefix("c\(index):") } == (0..<50).map { "c\(index): \(index) \($0)" })
        }
      }
    }
  }

  @Test func `of many who want a name at once, one gets it`() async throws {
    try await onCoroutine {
      try withChat { address, _ in
        let answers = try co_scope { scope in
          try (0..<20).map { _ in
            scope.launch {
              let client = try ChatClient(at: address)
              let answer = try client.ask("/nick king") ?? ""
              return (answer, Lent(client))
            }
          }
          .map { try $0.join() }
        }
        #expect(answers.count { $0.0.hasSuffix(" is now called king.") } == 1)
        #expect(answers.count { $0.0.hasPrefix("! name-taken ") } == 19)
      }
    }
  }

  @Test func `a name can be had again when its owner has gone`() async throws {
    try await onCoroutine {
      try withChat { address, _ in
        let alice = try ChatClient(at: address, "alice")
        let bob = try ChatClient(at: address, "bob")
        #expect(try bob.ask("/nick ALICE")?.hasPrefix("! name-taken ") == true)
        alice.connection.close()
        try bob.skip(to: "* alice has left (gone).")
        #expect(try bob.ask("/nick ALICE") == "* bob is now called ALICE.")
      }
    }
  }

  @Test func `a client that says nothing is sent away, and told why`() async throws {
    try await onCoroutine {
      var options = ChatOptions()
      options.idle = 0.1
      try withChat(options) { address, _ in
        let client = try ChatClient(at: address)
        #expect(try client.rest() == ["* You have said nothing for 0.1 s. Good-bye."])
      }
    }
  }

  @Test func `bytes without the end of a line are no sign of life`() async throws {
    try await onCoroutine {
      var options = ChatOptions()
      options.idle = 0.2
      // Longer than this test: the server does not break the connection before the client has read.
      options.linger = .seconds(600)
      try withChat(options) { address, _ in
        let client = try ChatClient(at: address)
        let connection = client.connection
        let writer = co_launch {
          while true {
            try connection.write([UInt8](repeating: 65, count: 700))
            try co_delay(.milliseconds(1))
          }
        }
        #expect(try client.line() == "* You have said nothing for 0.2 s. Good-bye.")
        #expect(try client.line() == nil)
        writer.cancel()
        connection.close()
        _ = try? writer.join()
      }
    }
  }

  @Test func `a line that is too long is refused with a code, and the next one counts`() async throws {
    try await onCoroutine {
      var options = ChatOptions()
      options.longestLine = 100
      try withChat(options) { address, _ in
        let client = try ChatClient(at: address, "alice")
        let refusal = "\(ChatRefusal.longLine(longest: 100))"
        #expect(refusal.hasPrefix("! long-line "))
        func line(_ count: Int, _ end: String = "") -> String { String(repeating: "x", count: count) + end }
        #expect(try client.ask(line(100)) == "alice: \(line(100))")
        #expect(try client.ask(line(100, "\r")) == "alice: \(line(100))")
        for count in [101, 102, 103, 201, 202, 203, 303, 5_000, 100_000] {
          #expect(try client.ask(line(count)) == refusal)
          #expect(try client.ask(line(count, "\r")) == refusal)
        }
        #expect(try client.ask("hello") == "alice: hello")
      }
    }
  }

  @Test func `a client whose connection breaks has left, whatever it was doing`() async throws {
    try await onCoroutine {
      try withChat { address, _ in
        let alice = try ChatClient(at: address, "alice")
        for (index, ending) in ["", "/nick half a li", "hello\nhello\n"].enumerated() {
          let bob = try ChatClient(at: address, "bob\(index)")
          try bob.connection.write(ending.utf8)
          bob.reset()
          try alice.skip(to: "* bob\(index) has left (gone).")
        }
        #expect(try alice.ask("/who") == "* tea: alice")
      }
    }
  }

  @Test func `a client that has said everything still hears the answers`() async throws {
    try await onCoroutine {
      try withChat { address, _ in
        let client = try ChatClient(Connection.connect(to: address))
        try client.connection.write("/nick alice\n/join tea\nhello\nunfinished".utf8)
        try client.connection.shutdownWrite()
        let heard = try client.rest().dropFirst()
        #expect(heard == ["* guest-1 is now called alice.", "* alice has joined tea.", "alice: hello"])
      }
    }
  }

  @Test func `a client that does not read is sent away, with all lines up to a certain one, and harms nobody`()
    async throws
  {
    try await onCoroutine {
      var options = ChatOptions()
      options.backlog = 20
      let tally = try withChat(options) { address, _ in
        let slow = try ChatClient(at: address, "slow")
        let alice = try ChatClient(at: address, "alice")
        let padding = String(repeating: "x", count: 900)
        var sent = 0
        // In step with the server, so that alice herself is never slow.
        while try alice.ask("\(sent) \(padding)") != "* slow has left (too slow)." { sent += 1 }
        // The line by which the place ran out came before the news.
        let heard = try slow.rest()
        #expect(heard.first == "* alice has joined tea.")
        let messages = heard.dropFirst().dropLast()
        #expect(messages.elementsEqual((0..<messages.count).map { "alice: \($0) \(padding)" }))
        #expect(messages.count >= 20 && messages.count <= sent)
        #expect(
          heard.last
            == "* You read too slowly: 20 messages were waiting for you, and the next ones are lost. Good-bye."
        )
      }
      #expect(tally.tooSlow == 1)
    }
  }

  @Test func `a client that takes nothing at all does not stay for ever`() async throws {
    try await onCoroutine {
      var options = ChatOptions()
      // A backlog that nothing fills here, so that only the server's patience ends the session.
      (options.backlog, options.longestLine, options.patience) = (100_000, 65_536, .milliseconds(200))
      let tally = try withChat(options) { address, _ in
        let slow = try ChatClient(at: address, "slow")
        let alice = try ChatClient(at: address, "alice")
        let padding = String(repeating: "x", count: 60_000)
        var line = try alice.ask(padding)
        while line?.hasPrefix("* ") == false {
          // Lets the patience end before a million lines have been said.
          try co_delay(.milliseconds(1))
          line = try alice.ask(padding)
        }
        #expect(line == "* slow has left (gone).")
        // Its connection ends without its reading: what has come is there, then the end or a reset.
        let ending = Result { try co_timeout(.seconds(30)) { try slow.rest() } }
        if case .failure(let error) = ending { #expect(error is NetError) }
      }
      #expect(tally.tooSlow == 0)
    }
  }

  @Test func `one client more than the limit is told so, and its place can be taken later`() async throws {
    try await onCoroutine {
      var options = ChatOptions()
      options.limit = 2
      try withChat(options) { address, _ in
        let alice = try ChatClient(at: address, "alice")
        let bob = try ChatClient(at: address, "bob")
        let third = try ChatClient(Connection.connect(to: address))
        #expect(try third.rest() == ["! full There are 2 clients already. Try again later."])
        #expect(try alice.ask("/quit") == "* bob has joined tea.")
        #expect(try alice.rest() == ["* Good-bye."])
        try bob.skip(to: "* alice has left.")
        _ = try ChatClient(at: address, "carol")
      }
    }
  }

  @Test func `at its end it says good-bye to everybody, and takes nobody more`() async throws {
    try await onCoroutine {
      try withChat(at: try ownLoopback()) { address, stop in
        let clients = try (0..<20).map { try ChatClient(at: address, "c\($0)", in: "room-\($0 % 3)") }
        let silent = try ChatClient(at: address)
        stop()
        for client in clients {
          let lines = try client.rest()
          #expect(lines.last == "* The server stops. Good-bye.")
          #expect(lines.dropLast().allSatisfy { $0.contains(" has joined room-") })
        }
        #expect(try silent.rest() == ["* The server stops. Good-bye."])
        try waitUntilRefused(by: address)
      }
    }
  }

  @Test func `an address that another server has is an error that says so`() async throws {
    try await onCoroutine {
      try withChat { address, _ in
        let error = #expect(throws: NetError.self) { try withChat(at: address) { _, _ in } }
        #expect(error?.code == EADDRINUSE)
      }
    }
  }
}

/// A value that one coroutine gives to another, and does not use meanwhile.
// Sound because the giver waits until the taker has ended.
struct Lent<Value>: @unchecked Sendable {
  let value: Value
  init(_ value: Value) { self.value = value }
}
#endif
