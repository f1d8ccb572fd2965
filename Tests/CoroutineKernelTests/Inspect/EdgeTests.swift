import Dispatch
import Testing

@testable import Coroutine

/// What a report says of the connections between coroutines, and which of them are the library's.
@Suite("Edges of a dump", .timeLimit(.minutes(10)))
struct EdgeTests {
  @Test func `a dump ends with who holds up how many, directly and through others, and what that one does`()
    async throws
  {
    let (list, stacks) = try await onCoroutine(on: taggedQueue("edges.held")) {
      let (mutex, gate) = (FairMutex(), Gate())
      let owner = co_launch(name: "owner") { try mutex.withLock { try gate.pass() } }
      try co_yield()
      let second = co_launch(name: "second") { try mutex.withLock {} }
      for _ in 0..<3 { co_launch { try mutex.withLock {} } }
      for _ in 0..<2 { co_launch { try second.join() } }
      // One that holds up a single one is not worth a line.
      let single = co_launch(name: "single") { try gate.pass() }
      co_launch { try single.join() }
      try co_yield()
      try co_yield()
      let scheduler = [QueueHost.current.unsafelyUnwrapped]
      let dumps = (Dump.text(of: scheduler), StackDump.text(of: scheduler))
      gate.open()
      try owner.join()
      return dumps
    }
    for text in [list, stacks] {
      let lines = text.split(separator: "\n").filter { $0.contains(" holds up ") }
      #expect(lines.count == 1, "\(text)")
      #expect(
        lines.first?.wholeMatch(
          of:
            #/#\d+ "owner" holds up 6: 4 waiting for a lock \(FairMutex 0x[0-9a-f]+\); it is waiting for a promise .*, launched at CoroutineKernelTests/EdgeTests.swift:\d+/#
        ) != nil,
        "\(text)"
      )
    }
  }

  @Test func `who waits for an answer waits for the actor, by its number and its name`() async throws {
    try await onCoroutine(on: taggedQueue("edges.answer")) {
      let gate = Gate()
      let actor = co_actor(of: Reply<Int>.self, name: "the accounts") { mailbox in
        while let reply = try mailbox.receive() {
          try gate.pass()
          reply(1)
        }
      }
      let asker = co_launch(name: "asker") { try actor.ask { $0 } }
      for _ in 0..<3 { try co_yield() }
      let snapshot = CoroutineRuntime.snapshot(stacks: false, of: [QueueHost.current.unsafelyUnwrapped])
      let wait = try #require(snapshot.coroutines.first { $0.id == asker.id }?.wait)
      let answerer = try #require(snapshot.coroutines.first { $0.name == "the accounts" })
      #expect(wait.kind == "answer" && wait.owner == answerer.id && wait.object != nil)
      #expect(wait.text == "for an answer (from actor #\(answerer.id) \"the accounts\")")
      gate.open()
      #expect(try asker.join() == 1)
    }
  }

  @Test func `the library's own launch sites are told from the program's`() {
    #expect(Library.contains("CoroutineHTTP/Server.swift:12") && Library.contains("Coroutine/Actor.swift:1"))
    #expect(!Library.contains("CoroutineKernelTests/EdgeTests.swift:1") && !Library.contains("Server/main.swift:4"))
  }

  @Test(arguments: [
    ("$s9Coroutine9FairMutexC4lockyyKF", "Coroutine.FairMutex.lock() throws -> ()", Symbols.Owner.runtime),
    ("$s12CoroutineNet8ListenerC6acceptyyF", "CoroutineNet.Listener.accept() -> ()", .runtime),
    // The library is extended by the program.
    ("$s9Coroutine7ChannelC6ServerE5drainyyF", "(extension in Server):Coroutine.Channel.drain() -> ()", .program),
    ("$s12CoroutineAppE5drainyyF", "CoroutineApp.drain() -> ()", .program),
    ("$sSa5firstxSgvg", "Swift.Array.first", .standard),
  ])
  func `a function's owner is the module that declares it`(_ mangled: String, _ name: String, _ owner: Symbols.Owner) {
    #expect(Symbols.Owner(mangled, name) == owner)
  }

  @Test(arguments: [
    ("Server.(parse in _0123456789ABCDEF0123456789ABCDEF)(_: Swift.Int) -> ()", "Server.parse(_: Swift.Int) -> ()"),
    (
      "closure #1 () -> () in Server.(A in _0123456789ABCDEF0123456789ABCDEF).(b in _FEDCBA98765432100123456789ABCDEF)()",
      "closure #1 () -> () in Server.A.b()"
    ),
    ("Server.(short in _0123)()", "Server.(short in _0123)()"),
    ("closure #1 (in _x) in f()", "closure #1 (in _x) in f()"),
  ])
  func `a name has no discriminators of private functions`(_ made: String, _ shown: String) {
    #expect(Symbols.withoutDiscriminators(made) == shown)
  }
}
