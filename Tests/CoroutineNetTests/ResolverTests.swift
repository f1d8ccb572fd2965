import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// Name servers that do not answer: lookups have threads of their own, and as few as they need.
@Suite("Lookups without an answer", .timeLimit(.minutes(10)))
struct ResolverTests {
  /// A name server that keeps silent until the test says so.
  private final class Silent: Sendable {
    /// The names that were asked for, in order.
    let asked = Locked<[String]>([])
    let answers = DispatchSemaphore(value: 0)

    func ask(_ host: String) throws -> [SocketAddress] {
      asked.withLock { $0.append(host) }
      answers.wait()
      return [.loopback(port: 0)]
    }
  }

  @Test func `no more lookups than the limit run at once, in the order of the calls`() async throws {
    let server = Silent()
    let resolver = Resolver(limit: 2, asking: server.ask)
    try await co_launch(on: DispatchQueue(label: "lookups")) {
      let lookups = (0..<6).map { number in co_launch { try resolver.resolve("n\(number)", port: 7) } }
      try until { server.asked.current.count == 2 }
      try until { resolver.pool.counts.queued == 4 }
      #expect(Set(server.asked.current) == ["n0", "n1"])
      #expect(resolver.pool.counts.threads == 2)
      for _ in lookups { server.answers.signal() }
      for lookup in lookups { #expect(try lookup.join() == [.loopback(port: 7)]) }
      #expect(server.asked.current.count == 6)
    }
    .value
    resolver.pool.setLimit(1)
  }

  @Test func `a lookup that was given up before it began never begins`() async throws {
    let server = Silent()
    let resolver = Resolver(limit: 1, asking: server.ask)
    try await co_launch(on: DispatchQueue(label: "lookups")) {
      let first = co_launch { try resolver.resolve("first", port: 7) }
      try until { server.asked.current == ["first"] }
      let given = (0..<50).map { number in co_launch { try resolver.resolve("n\(number)", port: 7) } }
      let last = co_launch { try resolver.resolve("last", port: 7) }
      try until { resolver.pool.counts.queued == 51 }
      for lookup in given { lookup.cancel() }
      for lookup in given { #expect(throws: CancellationError.self) { try lookup.join() } }
      #expect(resolver.pool.counts.queued == 1)
      // One that has begun keeps its thread when it is given up, and the others wait.
      first.cancel()
      #expect(throws: CancellationError.self) { try first.join() }
      #expect(server.asked.current == ["first"])
      server.answers.signal()
      try until { server.asked.current == ["first", "last"] }
      server.answers.signal()
      #expect(try last.join() == [.loopback(port: 7)])
    }
    .value
  }

  // By the real clock: what keeps the lookup in the queue is a thread, which no world has.
  @Test func `a lookup whose deadline passes before it began never begins`() async throws {
    let server = Silent()
    let resolver = Resolver(limit: 1, asking: server.ask)
    try await co_launch(on: DispatchQueue(label: "lookups")) {
      let first = co_launch { try resolver.resolve("first", port: 7) }
      try until { server.asked.current == ["first"] }
      for number in 0..<20 {
        #expect(throws: TimeoutError.self) {
          try co_timeout(.milliseconds(1)) { try resolver.resolve("n\(number)", port: 7) }
        }
        #expect(resolver.pool.counts.queued == 0)
      }
      let last = co_launch { try resolver.resolve("last", port: 7) }
      try until { resolver.pool.counts.queued == 1 }
      for _ in 0..<2 { server.answers.signal() }
      for lookup in [first, last] { #expect(try lookup.join() == [.loopback(port: 7)]) }
      #expect(server.asked.current == ["first", "last"])
    }
    .value
  }

  @Test func `a lookup has a thread whose name says so`() async throws {
    let name = Locked("")
    let resolver = Resolver(limit: 1) { _ in
      var text = [UInt8](repeating: 0, count: 16)
      let file = open("/proc/thread-self/comm", O_RDONLY)
      let count = read(file, &text, text.count)
      close(file)
      name.withLock { $0 = String(decoding: text.prefix(count), as: UTF8.self) }
      return []
    }
    _ = try await onCoroutine { try resolver.resolve("name", port: 1) }
    #expect(name.current.hasPrefix("co-lookup-"))
  }

  @Test func `lookups that wait for an answer, or were given up, take no thread of co_blocking`() async {
    await #expect(processExitsWith: .success) {
      // A lookup on a thread of co_blocking would block this test for ever.
      alarm(100)
      CoroutineRuntime.blockingThreadLimit = 2
      let server = Silent()
      let resolver = Resolver(limit: 4, asking: server.ask)
      try await co_launch(on: DispatchQueue(label: "lookups")) {
        let lookups = (0..<6).map { number in co_launch { try resolver.resolve("n\(number)", port: 7) } }
        try until { server.asked.current.count == 4 }
        for _ in 0..<4 { #expect(try co_blocking { 7 } == 7) }
        for lookup in lookups { lookup.cancel() }
        for lookup in lookups { #expect(throws: CancellationError.self) { try lookup.join() } }
        for _ in 0..<4 { #expect(try co_blocking { 7 } == 7) }
        #expect(server.asked.current.count == 4)
      }
      .value
    }
  }

  // MARK: Names that many ask for

  @Test func `coroutines that ask for one name share its lookup, and each gets its own port`() async throws {
    let server = Silent()
    let resolver = Resolver(limit: 4, asking: server.ask)
    try await co_launch(on: DispatchQueue(label: "lookups")) {
      let lookups = (0..<100).map { number in co_launch { try resolver.resolve("one", port: UInt16(number)) } }
      let other = co_launch { try resolver.resolve("other", port: 7) }
      try until { server.asked.current.count == 2 }
      for _ in 0..<2 { server.answers.signal() }
      for (number, lookup) in lookups.enumerated() { #expect(try lookup.join() == [.loopback(port: UInt16(number))]) }
      #expect(try other.join() == [.loopback(port: 7)])
      #expect(Set(server.asked.current) == ["one", "other"] && server.asked.current.count == 2)
      #expect(resolver.counts.flights == 0)
    }
    .value
  }

  @Test func `what was found is used for a second, a failure by those who wait, and no table grows`() async throws {
    let now = Atomic<UInt64>(1)
    let asked = Locked<[String: Int]>([:])
    let fails = Locked(false)
    let ask: @Sendable (String) throws -> [SocketAddress] = { host in
      asked.withLock { $0[host, default: 0] += 1 }
      if fails.current { throw NetError(.unresolved(host, EAI_NONAME), "resolving") }
      return [.loopback(port: 0)]
    }
    let resolver = Resolver(asking: ask, now: { now.load(ordering: .relaxed) })
    try await onCoroutine {
      for _ in 0..<3 { #expect(try resolver.resolve("a", port: 1) == [.loopback(port: 1)]) }
      now.wrappingAdd(Resolver.timeKept - 1, ordering: .relaxed)
      #expect(try resolver.resolve("a", port: 2) == [.loopback(port: 2)])
      #expect(asked.current["a"] == 1)
      now.wrappingAdd(1, ordering: .relaxed)
      fails.withLock { $0 = true }
      for _ in 0..<2 { #expect(throws: NetError.self) { try resolver.resolve("a", port: 1) } }
      #expect(asked.current["a"] == 3)
      fails.withLock { $0 = false }
      for number in 0..<Resolver.mostKnown * 2 + 1 {
        _ = try resolver.resolve("host-\(number)", port: 1)
        #expect(resolver.counts.known <= Resolver.mostKnown)
      }
    }
  }

  @Test func `a name outlives the coroutine that asked first, in the queue and under way`() async throws {
    let server = Silent()
    let resolver = Resolver(limit: 1, asking: server.ask)
    try await co_launch(on: DispatchQueue(label: "lookups")) {
      let first = co_launch { try resolver.resolve("first", port: 7) }
      try until { server.asked.current == ["first"] }
      let late = co_launch { try resolver.resolve("first", port: 8) }
      // In the queue: its leader, two that wait for it, of which one gives up as well.
      let queued = (0..<3).map { number in co_launch { try resolver.resolve("queued", port: UInt16(number)) } }
      try until { resolver.pool.counts.queued == 1 }
      for job in [first, queued[0], queued[1]] {
        job.cancel()
        #expect(throws: CancellationError.self) { try job.join() }
      }
      for _ in 0..<2 { server.answers.signal() }
      #expect(try late.join() == [.loopback(port: 8)])
      #expect(try queued[2].join() == [.loopback(port: 2)])
      #expect(server.asked.current == ["first", "queued"])
    }
    .value
  }

  @Test func `names of this machine and numbers do not wait behind unknown names`() async throws {
    let server = Silent()
    let resolver = Resolver(limit: 2) { host in
      if HostsFile.has(host) { return [.loopback(port: 0)] }
      return try server.ask(host)
    }
    try await co_launch(on: DispatchQueue(label: "lookups")) {
      let unknown = (0..<200).map { number in co_launch { try resolver.resolve("unknown-\(number)", port: 7) } }
      try until { server.asked.current.count == 2 && resolver.pool.counts.queued == 198 }
      for name in ["localhost", "LOCALHOST", "a.localhost", "127.1", "127.0.0.1"] {
        #expect(try resolver.resolve(name, port: 9) == [.loopback(port: 9)], "\(name)")
      }
      #expect(try resolver.resolve("::1", port: 9) == [.ipv6("::1", port: 9)])
      for lookup in unknown { lookup.cancel() }
      for lookup in unknown { #expect(throws: CancellationError.self) { try lookup.join() } }
      for _ in 0..<2 { server.answers.signal() }
      try until { resolver.counts.flights == 0 }
    }
    .value
  }

  @Test(arguments: [
    ("one", true), ("two", true), ("three.example", true), ("tab", true), ("last", true), ("127.0.0.1", false),
    ("comment", false), ("on", false), ("alone", false), ("", false),
  ])
  func `a name is in the file of names, in any place of a line but the first`(_ name: String, _ isThere: Bool) {
    let path = freshPath("hosts")
    let text = "# comment\n127.0.0.1 one TWO # comment\nalone\n\n::1\ttab  three.example\n10.0.0.1 last"
    let file = fopen(path, "w")
    fputs(text, file)
    fclose(file)
    defer { unlink(path) }
    #expect(HostsFile.has(name, in: path) == isThere)
    #expect(!HostsFile.has(name, in: path + "-missing"))
  }

  /// Whether the resolver of the C library asks name servers, and so reads the file HOSTALIASES.
  static var asksNameServers: Bool {
    guard let file = fopen("/etc/nsswitch.conf", "r") else { return false }
    defer { fclose(file) }
    var line = [CChar](repeating: 0, count: 1_000)
    while fgets(&line, 1_000, file) != nil {
      let words = String(decoding: line.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
      if words.hasPrefix("hosts:") { return words.contains("dns") }
    }
    return false
  }

  @Test(.enabled(if: asksNameServers, "the resolver does not read HOSTALIASES"))
  func `a lookup that blocks leaves its queue free, and a cancellation ends the wait at once`() async {
    await #expect(processExitsWith: .success) {
      // A lookup on the queue itself would block this test for ever.
      alarm(100)
      let pipe = silentResolver()
      try await co_launch(on: DispatchQueue(label: "looking up")) {
        let lookups = [
          co_launch { _ = try SocketAddress.resolve("co-net-nowhere", port: 1) },
          co_launch { _ = try Connection.connect(host: "co-net-nowhere", port: 1) },
        ]
        // This coroutine is on the queue of the lookups.
        try untilAsked(pipe)
        #expect(lookups.allSatisfy { !$0.isFinished })
        for lookup in lookups { lookup.cancel() }
        for lookup in lookups { #expect(throws: CancellationError.self) { try lookup.join() } }
      }
      .value
      unlink(pipe)
      // Without the resolver's threads, which still wait.
      _exit(0)
    }
  }

  @Test(.enabled(if: asksNameServers, "the resolver does not read HOSTALIASES"))
  func `every call that looks a name up leaves the threads of co_blocking alone`() async {
    await #expect(processExitsWith: .success) {
      // A lookup on a thread of co_blocking would block this test for ever.
      alarm(100)
      CoroutineRuntime.blockingThreadLimit = 2
      let pipe = silentResolver()
      try await co_launch(on: DispatchQueue(label: "looking up")) {
        let lookups = (0..<4).map { number in
          co_launch {
            if number % 2 == 0 {
              _ = try SocketAddress.resolve("co-net-nowhere", port: 1)
            } else {
              _ = try Connection.connect(host: "co-net-nowhere", port: 1)
            }
          }
        }
        try untilAsked(pipe)
        for _ in 0..<4 { #expect(try co_blocking { 7 } == 7) }
        for lookup in lookups { lookup.cancel() }
        for lookup in lookups { #expect(throws: CancellationError.self) { try lookup.join() } }
        for _ in 0..<4 { #expect(try co_blocking { 7 } == 7) }
      }
      .value
      unlink(pipe)
      _exit(0)
    }
  }
}

/// Makes the system's resolver wait at a pipe; returns the pipe's path.
private func silentResolver() -> String {
  let pipe = freshPath("aliases")
  mkfifo(pipe, 0o600)
  // A resolver that opens the pipe waits there for its end.
  setenv("HOSTALIASES", pipe, 1)
  return pipe
}

/// Suspends until a resolver waits at the pipe, which then waits for ever.
private func untilAsked(_ pipe: String) throws {
  var writer: Int32 = -1
  try until {
    writer = open(pipe, O_WRONLY | O_NONBLOCK)
    return writer >= 0
  }
}
