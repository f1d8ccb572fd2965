#if HTTP
import Coroutine
import CoroutineNet
import CoroutineTesting
import Testing

@testable import CoroutineHTTP

/// A world repeats a run of the products' servers and clients, wherever their objects are in memory.
@Suite(.timeLimit(.minutes(10)))
struct RepeatTests {
  private static let programs: [(name: String, body: @Sendable () throws -> String)] = [
    ("a server stops with idle connections", stopsIdle), ("a server's sweep ends idle connections", sweepsIdle),
    ("a client closes", closesClient), ("a client closes what has been idle", closesOld),
    ("a server of connections stops", stopsConnections), ("promises by name fail together", failsByName),
  ]

  @Test(arguments: programs.map(\.name)) func `a run is the same again`(name: String) throws {
    let body = try #require(Self.programs.first { $0.name == name }).body
    var kept: [[UInt8]] = []
    for seed in 0..<10 as Range<UInt64> {
      var runs: [String] = []
      for _ in 0..<4 {
        let world = World(seed: seed)
        let result = try world.run(body)
        runs.append("\(world.fingerprint) \(world.now) \(result)")
        // What is allocated between two runs shifts the addresses of the second one.
        for index in 0..<100 { kept.append([UInt8](repeating: 0, count: 16 + (kept.count * 37 + index * 61) % 2_000)) }
        kept.removeAll { $0.count % 3 == 0 }
      }
      #expect(Set(runs).count == 1, "seed \(seed)")
    }
  }
}

private let get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

/// Runs a server with `count` clients that have had an answer and wait for the end, and then `finish`.
private func withIdleClients(
  _ options: HTTPServer.Options = .init(),
  count: Int = 6,
  _ finish: (Job<Void>) throws -> Void
) throws {
  try co_scope { scope in
    let bound = Promise<SocketAddress>()
    let serving = scope.launch(name: "server") {
      try HTTPServer.run(.any(port: 80), options: options, onListening: { bound.fulfill($0) }) { _, response in
        try response.send("hello")
      }
    }
    _ = try co_await(bound)
    for number in 1...count {
      scope.launch(name: "client \(number)") {
        let connection = try Connection.connect(to: .loopback(port: 80))
        try connection.write(get.utf8)
        while try !connection.read(upTo: 1_000).isEmpty {}
      }
    }
    try co_delay(.milliseconds(500))
    try finish(serving)
    serving.cancel()
    _ = try? serving.join()
  }
}

@Sendable private func stopsIdle() throws -> String {
  try withIdleClients { _ in }
  return ""
}

@Sendable private func sweepsIdle() throws -> String {
  var options = HTTPServer.Options()
  options.idle = .seconds(2)
  try withIdleClients(options) { _ in try co_delay(.seconds(10)) }
  return ""
}

/// Asks six hosts, which then wait for the end of their connections.
private func withHosts(_ options: HTTPClient.Options = .init(), _ body: (HTTPClient, () throws -> Void) throws -> Void)
  throws
{
  let world = try World.current ?? { throw CoroutineError.notInCoroutine }()
  for number in 1...6 {
    world.network.host("h\(number)") {
      try HTTPServer.run(.any(port: 80)) { _, response in try response.send("hello") }
    }
  }
  try world.settle()
  let client = HTTPClient(options)
  try body(client) {
    for number in 1...6 { _ = try client.get("http://h\(number)/") }
  }
  try world.settle()
}

@Sendable private func closesClient() throws -> String {
  try withHosts { client, ask in
    try ask()
    client.close()
  }
  return ""
}

@Sendable private func closesOld() throws -> String {
  try withHosts { client, ask in
    try ask()
    try co_delay(.seconds(600))
    _ = try client.get("http://h1/")
    client.close()
  }
  return ""
}

@Sendable private func stopsConnections() throws -> String {
  try co_scope { scope in
    let bound = Promise<SocketAddress>()
    let serving = scope.launch(name: "server") {
      try Server.run(.any(port: 80), onListening: { bound.fulfill($0) }) { connection in
        while try !connection.read(upTo: 100).isEmpty {}
      }
    }
    _ = try co_await(bound)
    for number in 1...6 {
      scope.launch(name: "client \(number)") {
        let connection = try Connection.connect(to: .loopback(port: 80))
        _ = try? connection.read(upTo: 1)
      }
    }
    try co_delay(.milliseconds(500))
    serving.cancel()
    _ = try? serving.join()
  }
  return ""
}

@Sendable private func failsByName() throws -> String {
  struct Failed: Error { let name: String }
  let names = (1...6).map { "member \($0)" }
  let promises = Dictionary(uniqueKeysWithValues: names.map { ($0, Promise<Int>.failure(Failed(name: $0))) })
  do {
    _ = try co_await(Promise.all(promises, losers: .cancelled))
    return "none failed"
  } catch let error as Failed {
    return error.name
  }
}
#endif
