import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// Name servers that do not answer: lookups have threads of their own, and as few as they need.
@Suite("Lookups without an answer", .timeLimit(.minutes(5)))
struct ResolverTests {
  /// A name server that keeps silent until the test says so.
  private final class Silent: Sendable {
    /// The names that were asked for, in order.
    let asked = Locked<[String]>([])
    let answers = DispatchSemaphore(value: 0)

    func ask(_ host: String, _ port: UInt16) throws -> [SocketAddress] {
      asked.withLock { $0.append(host) }
      answers.wait()
      return [.loopback(port: port)]
    }
  }

  @Test func `no more lookups than the limit run at once, in the order of the calls`() async throws {
    let server = Silent()
    let resolver = Resolver(limit: 2, server.ask)
    try await co_launch(on: DispatchQueue(label: "lookups")) {
      let lookups = (0..<6).map { number in co_launch { try resolver.resolve("\(number)", port: 7) } }
      try until { server.asked.current.count == 2 }
      try until { resolver.pool.counts.queued == 4 }
      #expect(Set(server.asked.current) == ["0", "1"])
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
    let resolver = Resolver(limit: 1, server.ask)
    try await co_launch(on: DispatchQueue(label: "lookups")) {
      let first = co_launch { try resolver.resolve("first", port: 7) }
      try until { server.asked.current == ["first"] }
      let given = (0..<50).map { number in co_launch { try resolver.resolve("\(number)", port: 7) } }
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
    let resolver = Resolver(limit: 1, server.ask)
    try await co_launch(on: DispatchQueue(label: "lookups")) {
      let first = co_launch { try resolver.resolve("first", port: 7) }
      try until { server.asked.current == ["first"] }
      for number in 0..<20 {
        #expect(throws: TimeoutError.self) {
          try co_timeout(.milliseconds(1)) { try resolver.resolve("\(number)", port: 7) }
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
    let resolver = Resolver(limit: 1) { _, _ in
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
      let resolver = Resolver(limit: 4, server.ask)
      try await co_launch(on: DispatchQueue(label: "lookups")) {
        let lookups = (0..<6).map { number in co_launch { try resolver.resolve("\(number)", port: 7) } }
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
