import Coroutine
import CoroutineHTTP
import CoroutineNet
import Testing

@testable import WebSocket

@Suite("A WebSocket", .timeLimit(.minutes(5)))
struct EchoTests {
  /// Runs `body` beside a server that sends messages back.
  private func withEcho(_ body: @escaping @Sendable (_ url: String) throws -> Void) async throws {
    try await co_launch {
      let bound = Promise<SocketAddress>()
      let serving = co_launch {
        try HTTPServer.run(.loopback(port: 0), onListening: { bound.fulfill($0) }, echo)
      }
      defer { serving.cancel() }
      try body("http://\(try co_await(bound))/")
    }.value
  }

  @Test func `messages come back whole, in order, up to the close`() async throws {
    try await withEcho { url in
      try WebSocket.open(url, with: HTTPClient()) { socket, reader in
        var messages = [0, 1, 125, 126, 65_535, 65_536, 300_000].map { size in
          WebSocket.Message(isText: false, bytes: (0..<size).map { UInt8(truncatingIfNeeded: $0) })
        }
        messages.append(.init(isText: true, bytes: Array("Grüße".utf8)))
        for message in messages {
          try socket.send(message)
          #expect(try socket.receive(&reader) == message)
        }
        try socket.close()
        #expect(try socket.receive(&reader) == nil)
      }
    }
  }

  @Test func `a request that is none is refused, and a message that is too long ends the socket`() async throws {
    try await withEcho { url in
      let client = HTTPClient()
      #expect(try client.get(url).head.status.code == 426)
      try WebSocket.open(url, with: client) { socket, reader in
        try socket.send(.init(isText: false, bytes: [UInt8](repeating: 1, count: 1 << 21)))
        #expect(try socket.receive(&reader) == nil)
      }
    }
  }
}
