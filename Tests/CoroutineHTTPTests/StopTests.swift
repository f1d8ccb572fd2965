#if HTTP
import Coroutine
import CoroutineNet
import CoroutineTesting
import Dispatch
import Glibc
import HTTPTypes
import Testing

@testable import CoroutineHTTP

/// What a server's stop, its limit and its clients' faults do to connections: plain, and over TLS.
@Suite("Ends of connections", .timeLimit(.minutes(10)))
struct StopTests {
  private static let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

  private static func options(isSecure: Bool) throws -> HTTPServer.Options {
    var options = HTTPServer.Options()
    // A stop that waits for it fails the test.
    options.server.drain = .seconds(200)
    if isSecure {
      let files = try Certificates.shared()
      options.tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
    }
    return options
  }

  private static func client(_ address: SocketAddress, isSecure: Bool) throws -> Transport {
    let connection = try Connection.connect(to: address)
    if !isSecure { return Transport(connection: connection, tls: nil) }
    var client = TLS.Client()
    client.trustedRoots = try Certificates.shared().path("ca.pem")
    return Transport(connection: connection, tls: try client.start(on: connection, host: "localhost"))
  }

  private static func stop(_ server: Running) throws { try co_timeout(.seconds(60)) { try server.stop() } }

  @Test(arguments: [false, true])
  func `a stop does not wait for clients that have sent nothing`(isSecure: Bool) async throws {
    try await onCoroutine {
      let server = try Running(Self.options(isSecure: isSecure)) { _, response in try response.send("ok") }
      let silent = try (0..<3).map { _ in try Connection.connect(to: server.address) }
      // It was accepted after them.
      let other = try Self.client(server.address, isSecure: isSecure)
      try other.send(Self.get)
      #expect(try other.next().hasSuffix("ok"))
      try Self.stop(server)
      for client in silent { #expect(try client.rest().isEmpty) }
      // A health check is no error.
      #expect(server.errors.current.isEmpty)
    }
  }

  @Test(arguments: [false, true])
  func `a stop does not wait for a client in the backlog that has sent nothing`(isSecure: Bool) async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      let silent = try Connection.connect(to: listener.address)
      var options = try Self.options(isSecure: isSecure)
      options.headTime = .seconds(200)
      try co_timeout(.seconds(60)) { [options] in
        try co_scope { scope in
          scope.launch(name: "server") {
            try co_await(co_stopping)
            try HTTPServer.run(listeners: [listener], options: options) { _, response in try response.send("ok") }
          }
          scope.stop(within: .seconds(100))
        }
      }
      #expect(try silent.rest().isEmpty)
    }
  }

  /// The server is told to stop before it accepts: its connections are in the backlog, with their requests.
  @Test(arguments: [false, true])
  func `a stop answers the requests of connections that wait to be accepted`(isSecure: Bool) async throws {
    try await onCoroutine {
      let listener = try Listener.bind(.loopback(port: 0))
      let clients = try (0..<10).map { _ in
        let client = try Connection.connect(to: listener.address)
        if !isSecure {
          try client.send(Self.get)
          try client.untilDelivered()
        }
        return client
      }
      let options = try Self.options(isSecure: isSecure)
      var handshakes = TLS.Client()
      handshakes.trustedRoots = try Certificates.shared().path("ca.pem")
      let secure = handshakes
      let streams = clients.map { client in
        co_launch { () -> String in
          if !isSecure { return try client.rest() }
          let stream = try secure.start(on: client, host: "localhost")
          do {
            try stream.write(Self.get.utf8)
            return try Transport(connection: client, tls: stream).next()
          } catch is NetError {
            return ""
          }
        }
      }
      // The hellos are there.
      while isSecure, !clients.allSatisfy({ $0.bytesWritten > 0 }) { try co_yield() }
      for client in clients { try client.untilDelivered() }
      try co_timeout(.seconds(60)) {
        try co_scope { scope in
          scope.launch(name: "server") {
            try co_await(co_stopping)
            try HTTPServer.run(listeners: [listener], options: options) { _, response in try response.send("ok") }
          }
          scope.stop(within: .seconds(50))
        }
      }
      for stream in streams {
        let answer = try stream.join()
        // Over TLS a request that was sent after the handshake may be late: its client gets an end, and at once.
        let isAnswered = statuses(answer) == [200] && answer.contains("connection: close\r\n")
        #expect(isAnswered || isSecure && answer.isEmpty, "\(answer)")
      }
    }
  }

  /// The server is cancelled before a coroutine that it has launched can begin.
  @Test(arguments: [false, true])
  func `a stop in the first moment is a stop`(isSecure: Bool) async throws {
    try await onCoroutine {
      let queue = DispatchQueue(label: "server")
      let listener = try Listener.bind(.loopback(port: 0))
      let silent = try Connection.connect(to: listener.address)
      let client = try Connection.connect(to: listener.address)
      if !isSecure {
        try client.send(Self.get)
        try client.untilDelivered()
      }
      let options = try Self.options(isSecure: isSecure)
      let job = Locked<Job<Void>?>(nil)
      queue.suspend()
      let server = co_launch(on: queue) {
        // In the queue before what the server launches.
        co_launch(on: queue) { job.current?.cancel() }
        try HTTPServer.run(listeners: [listener], options: options) { _, response in try response.send("ok") }
      }
      job.withLock { $0 = server }
      queue.resume()
      try co_timeout(.seconds(60)) { try server.join() }
      #expect(try silent.rest().isEmpty)
      let answer = try client.rest()
      #expect(isSecure ? answer.isEmpty : answer.contains("connection: close\r\n"), "\(answer)")
    }
  }

  @Test func `failed handshakes and refused requests go to onError, and are counted`() async throws {
    try await onCoroutine {
      let requests = [
        "GET / HTTP/1.1\r\n\r\n", "FOO / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: \(String(repeating: "x", count: 20_000))\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n",
      ]
      let plain = try Self.options(isSecure: false)
      try serving(plain) { request, response in
        try response.send(request.collect())
      } _: { server in
        let answers = try requests.flatMap { try askStatuses(server.address, $0) }
        #expect(answers == [400, 501, 431, 413])
        #expect(server.errors.current.count == 4)
        #expect(plain.counters.refusedRequests == 4 && plain.counters.failedHandshakes == 0)
      }
      var late = try Self.options(isSecure: false)
      late.headTime = .milliseconds(50)
      try serving(late) { _, response in
        try response.send("")
      } _: { server in
        let answer = try askStatuses(server.address, "GET ")
        #expect(answer == [408])
        #expect(late.counters.refusedRequests == 1 && server.errors.current.count == 1)
      }
      let secure = try Self.options(isSecure: true)
      try serving(secure) { _, response in
        try response.send("")
      } _: { server in
        for _ in 0..<3 { _ = try ask(server.address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") }
        // Each is counted before it is told.
        while secure.counters.failedHandshakes < 3 || server.errors.current.count < 3 { try co_yield() }
        #expect(secure.counters.failedHandshakes == 3 && server.errors.current.count == 3)
      }
    }
  }

  @Test(arguments: [false, true])
  func `an answer leaves before the handler of the next request runs`(isSecure: Bool) async throws {
    try await onCoroutine {
      let gate = Promise<Void>()
      try serving(try Self.options(isSecure: isSecure)) { request, response in
        if request.path == "/second" { try co_await(gate) }
        try response.send(String(request.path))
      } _: { server in
        let client = try Self.client(server.address, isSecure: isSecure)
        try client.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\nGET /second HTTP/1.1\r\nHost: a\r\n\r\n")
        #expect(try co_timeout(.seconds(60)) { try client.next() }.hasSuffix("/first"))
        gate.fulfill(())
        #expect(try client.next().hasSuffix("/second"))
      }
    }
  }

  /// How the server ends a connection that waits for a request.
  enum Ending: CaseIterable { case idle, stop, close }

  @Test(arguments: Ending.allCases)
  func `an end of TLS is announced`(_ ending: Ending) async throws {
    try await onCoroutine {
      var options = try Self.options(isSecure: true)
      // Time enough for the request that follows the handshake, on a busy machine.
      if ending == .idle { options.idle = .seconds(4) }
      let server = try Running(options) { _, response in
        if ending == .close { response.fields[.connection] = "close" }
        try response.send("ok")
      }
      let client = try Self.client(server.address, isSecure: true)
      try client.send(Self.get)
      #expect(try client.next().hasSuffix("ok"))
      if ending == .stop { server.job.cancel() }
      // It would throw if the stream was cut off.
      #expect(try client.next().isEmpty)
      try server.stop()
    }
  }

  @Test func `a client of HTTP announces the end of the connections that it keeps`() async throws {
    try await onCoroutine {
      let files = try Certificates.shared()
      let tls = try TLS.Server(certificateChain: files.path("server.pem"), privateKey: files.path("server.key"))
      let listener = try Listener.bind(.loopback(port: 0))
      let peer = co_launch { () -> String in
        let connection = try listener.accept()
        let transport = Transport(connection: connection, tls: try tls.accept(connection))
        _ = try transport.next()
        try transport.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        // It would throw if the stream was cut off.
        return try transport.next()
      }
      var options = HTTPClient.Options()
      options.tls.trustedRoots = files.path("ca.pem")
      let client = HTTPClient(options)
      let url = "https://localhost:\(listener.address.port ?? 0)/"
      #expect(try client.get(url).collect(upTo: 10) == Array("ok".utf8))
      client.close()
      #expect(try peer.join().isEmpty)
    }
  }

  @Test(arguments: [false, true])
  func `a body whose end is that of the connection is reset if it is incomplete`(isSecure: Bool) async throws {
    struct Oops: Error {}
    try await onCoroutine {
      try serving(try Self.options(isSecure: isSecure)) { request, response in
        try response.write("part")
        if request.path == "/fails" { throw Oops() }
      } _: { server in
        let whole = try Self.client(server.address, isSecure: isSecure)
        try whole.send("GET / HTTP/1.0\r\n\r\n")
        #expect(try whole.rest().hasSuffix("part"))
        let cut = try Self.client(server.address, isSecure: isSecure)
        try cut.send("GET /fails HTTP/1.0\r\n\r\n")
        #expect(throws: (any Error).self) { try cut.rest() }
      }
    }
  }

  @Test(arguments: [false, true])
  func `at the limit the connection that was idle longest gives way`(isSecure: Bool) async throws {
    try await onCoroutine {
      var options = try Self.options(isSecure: isSecure)
      options.server.maxConnections = 2
      try serving(options) { request, response in
        try response.send("ok")
      } _: { server in
        let idle = try (0..<2).map { _ in
          let client = try Self.client(server.address, isSecure: isSecure)
          try client.send(Self.get)
          #expect(try client.next().hasSuffix("ok"))
          return client
        }
        try co_timeout(.seconds(60)) {
          let new = try Self.client(server.address, isSecure: isSecure)
          try new.send(Self.get)
          #expect(try new.next().hasSuffix("ok"))
          // One of them has ended; the other one goes on.
          let ended = Channel<Int>(.unbounded)
          let waits = idle.enumerated().map { index, client in
            co_launch { if try client.next().isEmpty { try ended.send(index) } }
          }
          let index = try ended.receive() ?? 0
          for wait in waits {
            wait.cancel()
            _ = try? wait.join()
          }
          let other = idle[1 - index]
          try other.send(Self.get)
          #expect(try other.next().hasSuffix("ok"))
        }
      }
    }
  }

  /// Runs a server for `count` connections in simulated time; `GET /2` takes two seconds.
  private static func atLimit(_ count: Int, seed: UInt64 = 1, _ body: @escaping @Sendable () throws -> Void) throws {
    try World(seed: seed).run {
      var options = HTTPServer.Options()
      options.server.maxConnections = count
      try co_scope { [options] scope in
        let bound = Promise<SocketAddress>()
        scope.launch(name: "server") {
          let tell = { @Sendable (address: SocketAddress) in _ = bound.fulfill(address) }
          try HTTPServer.run(.any(port: 80), options: options, onListening: tell) { request, response in
            try co_delay(.seconds(Int(request.path.dropFirst()) ?? 0))
            try response.send("ok")
          }
        }
        _ = try co_await(bound)
        try body()
        scope.cancel()
      }
    }
  }

  private static func client(_ path: String = "/0") throws -> Connection {
    let client = try Connection.connect(to: .loopback(port: 80))
    try client.send("GET \(path) HTTP/1.1\r\nHost: a\r\n\r\n")
    return client
  }

  /// Reads an answer; false means that the connection has ended.
  private static func isAnswered(_ client: Connection) throws -> Bool {
    var answer: [UInt8] = []
    while !answer.reversed().starts(with: "ok".utf8.reversed()) {
      let part = try client.read(upTo: 1_000)
      if part.isEmpty { return false }
      answer += part
    }
    return true
  }

  @Test func `nobody gives way to a client that has got its place`() throws {
    try Self.atLimit(2) {
      let (first, second) = (try Self.client("/3"), try Self.client("/1"))
      try co_delay(.milliseconds(500))
      let third = try Self.client("/2")
      #expect(try Self.isAnswered(second))
      second.close()
      for client in [first, third] { #expect(try Self.isAnswered(client)) }
      // Many sweeps.
      try co_delay(.seconds(5))
      for client in [first, third] {
        try client.send(Self.get)
        #expect(try Self.isAnswered(client))
      }
    }
  }

  @Test func `a client gets its place although the connection that was to give way has a request`() throws {
    for seed in 0..<100 as Range<UInt64> {
      try Self.atLimit(1, seed: seed) {
        let first = try Self.client()
        #expect(try Self.isAnswered(first))
        try co_delay(.seconds(2))
        let request = co_launch { try first.send(Self.get) }
        let began = co_now
        let second = try Self.client()
        #expect(try Self.isAnswered(second))
        try request.join()
        #expect(co_now - began < .seconds(2), "seed \(seed)")
      }
    }
  }
}
#endif
