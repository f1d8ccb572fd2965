import CCoroutine
import CTestSupport
import Coroutine
import CoroutineNet
import Glibc
import Testing

/// Servers and clients of CoroutineNet for a long time, on loopback.
///
/// - `CO_SOAK_SECONDS`: how long conversations go on, 2,000 at once; without it one second, 40 at once. `make soak-net`
///   sets it.
/// - `CO_SOAK_CONNECTIONS`: how many short connections are opened and closed; 2,000 unless said.
/// - `CO_SEED`: the seed of what the conversations do.
@Suite("Stress: servers and clients", .serialized, .timeLimit(.minutes(60)))
struct NetSoakTests {
  private var seconds: Double? { variable("CO_SOAK_SECONDS").flatMap { Double($0) } }

  @Test func `conversations that end in every way lose no byte, and leave nothing behind`() async throws {
    _ = cts_limit_descriptors(65_536)
    // Half of the conversations end with errors, and the heap would have the backtraces of them all.
    cts_note_throws(false)
    defer { cts_note_throws(true) }
    let soak = NetSoak()
    let crowd = seconds == nil ? 40 : 2_000
    let before = try await Self.run(soak, crowd: crowd, for: .seconds(min(seconds ?? 0.3, 10)))
    let after = try await Self.run(soak, crowd: crowd, for: .seconds(seconds ?? 1), like: before)
    let ended = soak.ended.with { $0 }
    if seconds != nil {
      print("ended: \(ended.sorted { $0.key.rawValue < $1.key.rawValue }.map { "\($0.key) \($0.value)" })")
      print("after the first round: \(before)\nat the end: \(after)")
    }
    for finding in soak.findings.with({ $0 }) { Issue.record("\(finding); \(soak.stress.replay)") }
    for ending in NetSoak.Ending.allCases { #expect(ended[ending, default: 0] > 0, "\(soak.stress.replay)") }
    Self.compare(before, after)
  }

  @Test func `short connections in large numbers leave nothing behind`() async throws {
    _ = cts_limit_descriptors(65_536)
    cts_note_throws(false)
    defer { cts_note_throws(true) }
    let most = variable("CO_SOAK_CONNECTIONS").flatMap { Int($0) } ?? 2_000
    let first = try await Self.connect(1_000)
    let (clock, answered) = (ContinuousClock(), Census())
    let start = clock.now
    let after = try await Self.connect(most, answered, like: first)
    if seconds != nil { print("\(most) connections in \(clock.now - start)\nfirst: \(first)\nat the end: \(after)") }
    #expect(answered.now == most)
    Self.compare(first, after)
  }

  /// What the process holds may not grow with the number of connections.
  ///
  /// A sanitizer's allocator keeps what is freed, and maps as it likes. malloc maps a few arenas, at its own times, and
  /// each thread keeps some freed blocks: on a crowded machine there may be dozens of spare workers. Resident memory is
  /// no measure: kept stacks, and pages that malloc keeps, have as much as was in use at once.
  private static func compare(_ before: Holdings, _ after: Holdings) {
    #expect(after.coroutines == before.coroutines, "\(before) became \(after)")
    #expect(after.descriptors <= before.descriptors, "\(before) became \(after)")
    let sanitizers = CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue
    guard cco_compiled_sanitizers() & sanitizers == 0 else { return }
    let threads = max(0, after.threads - before.threads)
    #expect(after.mappings <= before.mappings + 64 + 4 * threads, "\(before) became \(after)")
    #expect(after.heapBytes <= before.heapBytes + 2_000_000 + 65_536 * threads, "\(before) became \(after)")
  }

  // MARK: the rounds

  /// Lets `crowd` clients talk, one conversation after the other, and returns what the process holds afterwards.
  ///
  /// For longer than `time` where the machine comes to few conversations: each kind must come, and all clients be busy.
  private static func run(
    _ soak: NetSoak,
    crowd: Int,
    for time: Duration,
    like before: Holdings? = nil
  ) async throws -> Holdings {
    var options = Server.Options()
    options.listener.reusePort = true
    options.onError = { error, address in soak.judge(error, address) }
    let serve: @Sendable (Connection) throws -> Void = { try soak.serve($0) }
    try await withServer(options, serve) { address in
      let clock = ContinuousClock()
      let end = clock.now + time
      let least = soak.ended.with { $0.values.reduce(0, +) } + 4 * crowd
      try co_scope { scope in
        for number in 0..<crowd {
          scope.launch {
            while clock.now < end || !soak.haveEnded(least) { try soak.converse(with: loopback(number, address)) }
          }
        }
      }
    }
    return await settled(like: before)
  }

  /// Opens, uses and closes `count` connections, 64 at once.
  private static func connect(
    _ count: Int,
    _ answered: Census = Census(),
    like before: Holdings? = nil
  ) async throws -> Holdings {
    let started = Census()
    let echo: @Sendable (Connection) throws -> Void = { try $0.write(try $0.read(upTo: 1)) }
    try await withServer(Server.Options(), echo) { address in
      try co_scope { scope in
        for _ in 0..<64 {
          scope.launch {
            while true {
              let number = started.change()
              if number > count { return }
              let connection = try Connection.connect(to: loopback(number, address))
              try connection.write([UInt8(truncatingIfNeeded: number)])
              if try connection.read(upTo: 2) == [UInt8(truncatingIfNeeded: number)] { answered.change() }
              // The side that closes first keeps the pair of ports for a while: the server does, after its answer.
              _ = try connection.read(upTo: 1)
              connection.close()
            }
          }
        }
      }
    }
    return await settled(like: before)
  }

  private static func withServer(
    _ options: Server.Options,
    _ handle: @escaping @Sendable (Connection) throws -> Void,
    _ body: @escaping @Sendable (SocketAddress) throws -> Void
  ) async throws {
    try await co_launch {
      let bound = Promise<SocketAddress>()
      let server = co_launch {
        try Server.run(.ipv4("0.0.0.0", port: 0), options: options, onListening: { bound.fulfill($0) }, handle)
      }
      defer { server.cancel() }
      try body(try co_await(bound))
      server.cancel()
      try server.join()
    }
    .value
  }

  /// One of 4,000 addresses of the server: each has ports of its own for clients, as those of one address run out.
  private static func loopback(_ number: Int, _ address: SocketAddress) throws -> SocketAddress {
    try .ipv4("127.3.\(number % 16).\(number / 16 % 250 + 1)", port: address.port ?? 0)
  }

  /// What the process holds when the last coroutine's stack is free.
  ///
  /// A job's value may be there a moment before that, and the watchdog, or Dispatch, may have a file of /proc open for
  /// a moment. If something leaks, the count never comes back: the last look decides.
  private static func settled(like before: Holdings?) async -> Holdings {
    var (holdings, looks) = (Holdings.now, 0)
    while holdings.coroutines > 0 || holdings.descriptors > before?.descriptors ?? .max, looks < 10_000 {
      await Task.yield()
      (holdings, looks) = (Holdings.now, looks + 1)
    }
    return holdings
  }

  // MARK: the process

  private func variable(_ name: String) -> String? { getenv(name).map { String(cString: $0) } }
}
