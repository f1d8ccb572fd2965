#if Demo
import ArgumentParser
import Coroutine
import CoroutineNet
import Foundation
import Testing

@testable import CoroutineDemo

/// The programs as processes.
@Suite(.timeLimit(.minutes(10))) struct `CoroutineDemo chat and chat-load` {
  /// Starts a server on a free port, and returns its address when it listens.
  private func serve(_ arguments: [String] = []) async throws -> (DemoProcess, port: UInt16) {
    let server = try DemoProcess(["chat", "--port", "0"] + arguments)
    try await server.says(". Ctrl-C stops it.\n")
    let sentence = /Listening at 127\.0\.0\.1:(\d+)\. Clients: nc 127\.0\.0\.1 (\d+)\./
    let line = try #require(server.errorsSoFar.firstMatch(of: sentence))
    #expect(line.1 == line.2)
    return (server, try #require(UInt16(line.1)))
  }

  @Test(arguments: [SIGINT, SIGTERM])
  func `a signal makes the server say good-bye to its clients, and end well`(signal: Int32) async throws {
    let (server, port) = try await serve()
    let heard = try await onCoroutine {
      let clients = try (0..<5).map { try ChatClient(at: .loopback(port: port), "c\($0)", in: "room-\($0)") }
      server.send(signal)
      return try clients.map { try $0.rest() }
    }
    #expect(heard.allSatisfy { $0 == ["* The server stops. Good-bye."] })
    let end = await server.end()
    #expect(end.status == 0)
    #expect(
      end.errors.hasSuffix("Stopped: 5 clients were here, 5 at once; they were sent 15 lines. 0 read too slowly.\n")
    )
    #expect(end.output.isEmpty)
  }

  @Test func `SIGUSR2 shows where all coroutines are, in groups, and the server goes on`() async throws {
    let (server, port) = try await serve()
    try await onCoroutine {
      let client = try ChatClient(at: .loopback(port: port), "ada", in: "kitchen")
      server.send(SIGUSR2)
      _ = client
    }
    try await server.says("\"hub\" on c")
    let hub = /ms, to receive \(Channel<Envelope<ChatEvent>> .*\n.*ChatHub\.swift:\d+\n  it is #\d+ "hub" on c/
    #expect(server.errorsSoFar.contains(/\d+ live coroutines in \d+ groups\n/))
    #expect(server.errorsSoFar.contains(hub), "\(server.errorsSoFar)")
    server.send(SIGTERM)
    #expect(await server.end().status == 0)
  }

  @Test func `an address in use is named, with what to do`() async throws {
    let (server, port) = try await serve()
    let end = try await DemoProcess.run(["chat", "--port", "\(port)"])
    #expect(end.status == 71)
    #expect(end.errors.hasPrefix("CoroutineDemo: binding 127.0.0.1:\(port): Address already in use"))
    #expect(end.errors.contains("choose another port"))
    server.send(SIGTERM)
    #expect(await server.end().status == 0)
  }

  @Test func `an address that is not this machine's, or none, is named`() async throws {
    let end = try await DemoProcess.run(["chat", "--host", "192.0.2.1", "--port", "0"])
    #expect(end.status == 71)
    #expect(end.errors.contains("binding 192.0.2.1:0: Cannot assign requested address"))
  }

  @Test func `a server that is stopped while a name is looked up ends well, or with the signal`() async throws {
    try await onCoroutine {
      let command = try #require(try ChatCommand.parseAsRoot(["--host", "slow.test", "--port", "0"]) as? ChatCommand)
      var run = ChatRun(command)
      let asked = Channel<String>(.unbounded)
      run.resolve = { [asked] host, _ in
        try asked.send(host)
        try co_delay(.seconds(86_400))
        return []
      }
      let ended = try co_scope { scope in
        let serving = scope.launch { [run] in try run.serve(ChatOptions()) }
        #expect(try asked.receive() == "slow.test")
        scope.stop(within: .seconds(600))
        return try serving.join()
      }
      #expect(ended == nil)
      let serving = co_launch { [run] in try run.serve(ChatOptions()) }
      #expect(try asked.receive() == "slow.test")
      serving.cancel()
      #expect(throws: CancellationError.self) { try serving.join() }
    }
  }

  @Test func `a server that may have few descriptors takes fewer clients, and says so`() async throws {
    let server = try DemoProcess(["chat", "--port", "0"], limit: "-n 256")
    try await server.says("Listening at ")
    server.send(SIGTERM)
    let end = await server.end()
    #expect(end.status == 0)
    #expect(end.errors.contains(/at most \d+ clients in place of 1000, since .* 256 open files; .* ulimit -n/))
  }

  @Test func `the load of its own server is complete, and is told as text`() async throws {
    let end = try await DemoProcess.run(["chat-load", "--clients", "25", "--messages", "20"])
    #expect(end.status == 0, "\(end.errors)")
    #expect(end.output.hasPrefix("25 clients in 3 rooms, 20 messages each, 4 under way\n"))
    #expect(end.output.contains(/\n  messages +500  [\d,]+ a second\n/))
    #expect(end.output.contains(/\n  deliveries +4,500  [\d,]+ a second\n/))
    for name in ["lost", "duplicated", "out of order"] { #expect(end.output.contains(try Regex("\n  \(name) +0\n"))) }
    #expect(end.output.contains("\nTime from send to delivery\n"))
    #expect(end.output.contains("│"))
    #expect(end.errors.hasSuffix("4,500 of 4,500 deliveries (100 %)\n"))
  }

  @Test func `the load of another server leaves nobody behind`() async throws {
    let (server, port) = try await serve()
    let end = try await DemoProcess.run(["chat-load", "--server", "localhost:\(port)", "--clients", "20"])
    #expect(end.status == 0, "\(end.errors)")
    server.send(SIGTERM)
    let last = await server.end().errors
    #expect(last.contains("Stopped: 20 clients were here, 20 at once; "), "\(last)")
  }

  @Test func `a bar is drawn on a terminal, and the cursor comes back`() async throws {
    let terminal = try PseudoTerminal(columns: 70, rows: 24, environment: ["TERM": "xterm-256color"])
    let end = try await DemoProcess.run(["chat-load", "--clients", "20", "--messages", "20"], terminal: terminal)
    #expect(end.status == 0)
    #expect(end.output.contains("━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  4,000 of 4,000 deliveries (100 %)"))
    let hidden = try #require(end.output.range(of: "\u{1B}[?25l"))
    let shown = try #require(end.output.range(of: "\u{1B}[?25h"))
    #expect(hidden.lowerBound < shown.lowerBound)
  }

  @Test func `nobody there is said once for all clients`() async throws {
    let port = try SilentPort()
    // Taken until the process has ended.
    defer { withExtendedLifetime(port) {} }
    let end = try await DemoProcess.run(["chat-load", "--server", "127.0.0.1:\(port.number)", "--clients", "3"])
    #expect(end.status == 31)
    #expect(end.errors.components(separatedBy: "Connection refused").count == 2)
    #expect(end.errors.contains("nothing listens there"))
    #expect(end.output.contains(/\n  failed clients +3\n/))
  }

  @Test func `a server that has no room for all is named`() async throws {
    let (server, port) = try await serve(["--limit", "2"])
    let end = try await DemoProcess.run([
      "chat-load", "--server", "127.0.0.1:\(port)", "--clients", "5", "--messages", "2", "--timeout", "5",
    ])
    #expect(end.status == 31)
    #expect(end.errors.contains("the server answered: ! full There are 2 clients already."), "\(end.errors)")
    server.send(SIGTERM)
    _ = await server.end()
  }

  @Test(arguments: [FaultyServer.Ending.complete, .ignoresQuit])
  func `a loss is a loss, whatever fails afterwards`(ending: FaultyServer.Ending) async throws {
    let (address, serving) = try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      return (
        listener.address,
        co_launch {
          let connection = try listener.accept()
          defer { connection.close() }
          try FaultyServer(ending: ending).serve(connection)
        }
      )
    }
    let end = try await DemoProcess.run([
      "chat-load", "--server", "127.0.0.1:\(address.port ?? 0)", "--clients", "1", "--messages", "10",
      "--timeout", "8",
    ])
    #expect(end.status == 30, "\(end.errors)")
    for name in ["lost", "duplicated", "out of order"] { #expect(end.output.contains(try Regex("\n  \(name) +1\n"))) }
    let failed = end.output.contains(/\n  failed clients +1\n/)
    #expect(failed == (ending == .ignoresQuit))
    #expect(end.errors.contains("the server does not close it after /quit") == failed)
    // The process has closed its end.
    try await serving.value
  }

  @Test func `more clients than descriptors is an error that says how many there may be`() async throws {
    let demo = try DemoProcess(["chat-load", "--clients", "500"], limit: "-n 300")
    let end = await demo.end()
    #expect(end.status == 64)
    let advice = /500 clients need 1,000 descriptors, .* 300; use --clients \d+, or raise the limit with ulimit -n\.\n/
    #expect(end.errors.contains(advice), "\(end.errors)")
  }

  @Test(arguments: [(SIGINT, 130), (SIGTERM, 143)] as [(Int32, Int32)])
  func `a load that is interrupted says so`(signal: Int32, code: Int32) async throws {
    let demo = try DemoProcess(["chat-load", "--clients", "50", "--messages", "100000"])
    try await demo.says(" deliveries (")
    demo.send(signal)
    let end = await demo.end()
    #expect(end.status == code)
    #expect(end.errors.contains("CoroutineDemo: interrupted before the end; nothing was checked.\n"))
    #expect(end.output.isEmpty)
  }

  @Test func `a result that cannot be written is said`() async throws {
    let full = try #require(FileHandle(forWritingAtPath: "/dev/full"))
    let end = try await DemoProcess.run(["chat-load", "--clients", "2", "--messages", "1"], output: full)
    #expect(end.status == 74)
    #expect(end.errors.hasSuffix("CoroutineDemo: cannot write to standard output: No space left on device.\n"))
  }

  @Test(arguments: [
    (["chat", "--limit", "0"], "--limit is a number from 1 to 1000000, not 0"),
    (["chat", "--idle", "nan"], "--idle is a number of seconds above 0 and up to 86400, not nan"),
    (["chat", "--longest-line", "10"], "--longest-line is a number of bytes from 64 to 65536, not 10"),
    (["chat", "--port", "70000"], "--port"),
    (["chat-load", "--clients", "0"], "--clients is a number from 1 to 20000, not 0"),
    (["chat-load", "--server", "::1:7"], "--server is a host and a port"),
    (["chat-load", "--window", "-1"], "--window is a number from 1 to 100, not -1"),
  ])
  func `a bad argument is a usage error that names it`(arguments: [String], sentence: String) async throws {
    let end = try await DemoProcess.run(arguments)
    #expect(end.status == 64)
    #expect(end.errors.contains(sentence), "\(end.errors)")
  }
}

@Suite struct `What Sources/CoroutineDemo/Chat/README.md promises` {
  @Test func `has a row for every exit code, and so has the help`() throws {
    let document = try Self.document()
    let help = ChatCommand.helpMessage() + ChatLoadCommand.helpMessage()
    for code in [0, 30, 31, 64, 70, 71, 74, 130] {
      #expect(document.contains("\n| \(code) |"), "\(code)")
      #expect(help.contains(try Regex("\n +\(code) ")), "\(code)")
    }
  }

  @Test func `names every code of a refusal, and every command`() throws {
    let document = try Self.document()
    let refusals: [ChatRefusal] = [
      .longLine(longest: 1), .unknownCommand(""), .missingName(""), .badName(""), .nameTaken(""), .noRoom,
      .sameRoom(""),
    ]
    for refusal in refusals { #expect(document.contains("`\(refusal.code)`"), "\(refusal.code)") }
    for command in ["/nick", "/join", "/leave", "/rooms", "/who", "/help", "/quit"] {
      #expect(document.contains("`\(command)"), "\(command)")
      #expect(ChatRequest.helpText.contains(command) || command == "/help")
    }
  }

  /// The session that the page shows, said by its clients in this order.
  @Test func `is what a server answers`() async throws {
    let document = try Self.document()
    try await onCoroutine {
      try withChat { address, _ in
        let alice = try ChatClient(Connection.connect(to: address))
        var heard = [try alice.line() ?? ""]
        for line in ["/nick alice", "/join tea"] { heard.append(try alice.ask(line) ?? "") }
        let bob = try ChatClient(at: address, "bob")
        heard.append(try alice.line() ?? "")
        heard.append(try alice.ask("Is anybody here?") ?? "")
        try bob.skip(to: "alice: Is anybody here?")
        try bob.say("Always.")
        heard.append(try alice.line() ?? "")
        for line in ["/nick bob", "/rooms", "/milk"] { heard.append(try alice.ask(line) ?? "") }
        try bob.say("/quit")
        heard.append(try alice.line() ?? "")
        heard.append(try alice.ask("/quit") ?? "")
        for line in heard { #expect(document.contains("\n    \(line)\n"), "\(line)") }
      }
    }
  }

  private static func document() throws -> String {
    var root = URL(filePath: #filePath)
    for _ in 1...4 { root.deleteLastPathComponent() }
    return try String(contentsOf: root.appending(path: "Sources/CoroutineDemo/Chat/README.md"), encoding: .utf8)
  }
}
#endif
