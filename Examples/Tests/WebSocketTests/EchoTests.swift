import Clients
import Coroutine
import CoroutineHTTP
import CoroutineNet
import Foundation
import HTTPTypes
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

  // MARK: - Beside Python's websockets

  private static let python = "/usr/bin/python3"
  private static let hasWebSockets = FileManager.default.fileExists(
    atPath: "/usr/lib/python3/dist-packages/websockets"
  )

  /// A client that sends what peers may send: fragments with a ping between, texts, frames that are against the
  /// protocol, and each kind of end.
  private static let client = """
    import asyncio, sys, websockets
    sys.stderr = sys.stdout
    url = sys.argv[1]
    async def main():
      async with websockets.connect(url) as socket:
        for size in (0, 125, 126, 65535, 65536, 900000):
          await socket.send("a" * size)
          assert await socket.recv() == "a" * size, size
        await socket.send(["Grü", "ße", ""])
        assert await socket.recv() == "Grüße"
        await asyncio.wait_for(await socket.ping(), 60)
        await socket.send([b"one", b"", b"two"])
        assert await socket.recv() == b"onetwo"
      assert (socket.close_code, socket.close_reason) == (1000, ""), (socket.close_code, socket.close_reason)
      async def told(name, frame):
        socket = await websockets.connect(url)
        socket.transport.write(frame)
        try:
          await asyncio.wait_for(socket.recv(), 60)
          raise AssertionError("an answer")
        except websockets.ConnectionClosed:
          print(name, socket.close_code)
      mask = bytes(4)
      await told("opcode", bytes([0x83, 0x80]) + mask)
      await told("extension", bytes([0xc1, 0x80]) + mask)
      await told("unmasked", bytes([0x81, 0x01]) + b"x")
      await told("continued", bytes([0x80, 0x80]) + mask)
      await told("ping in pieces", bytes([0x09, 0x80]) + mask)
      await told("no UTF-8", bytes([0x81, 0x82]) + mask + b"\\xc3\\x28")
      await told("too large", bytes([0x82, 0xff]) + (1 << 40).to_bytes(8, "big") + mask)
    asyncio.run(main())
    """

  /// 1005: wslay closes without a code where a frame's head is wrong.
  private static let codes = """
    opcode 1002
    extension 1002
    unmasked 1002
    continued 1002
    ping in pieces 1005
    no UTF-8 1007
    too large 1009

    """

  @Test(.enabled(if: hasWebSockets, "needs python3-websockets: scripts/setup examples"))
  func `Python's client gets its messages back, and is told what it does wrong`() async throws {
    try await withEcho { url in
      let ran = try run(Self.python, ["-c", Self.client, "ws" + url.dropFirst("http".count)])
      #expect(ran.output == Self.codes)
    }
  }

  /// A server that says its port, sends messages back in fragments with pings between, and closes after the third.
  private static let server = """
    import asyncio, sys, websockets
    async def echo(socket, path):
      for _ in range(3):
        message = await socket.recv()
        await asyncio.wait_for(await socket.ping(), 60)
        await socket.send([message[:1], message[1:]])
      await socket.close(1001, "enough")
    async def main():
      async with websockets.serve(echo, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_event_loop().run_in_executor(None, sys.stdin.read)
    asyncio.run(main())
    """

  @Test(.enabled(if: hasWebSockets, "needs python3-websockets: scripts/setup examples"))
  func `a client of ours talks to Python's server, up to the server's close`() async throws {
    try await co_launch {
      let process = Process()
      process.executableURL = URL(fileURLWithPath: Self.python)
      process.arguments = ["-c", Self.server]
      let (input, output) = (Pipe(), Pipe())
      process.standardInput = input
      process.standardOutput = output
      try process.run()
      // At the end of its input the server ends.
      defer { try? input.fileHandleForWriting.close() }
      let line = try co_blocking { output.fileHandleForReading.availableData }
      let port = String(decoding: line, as: UTF8.self).filter(\.isNumber)
      try WebSocket.open("http://127.0.0.1:\(port)/", with: HTTPClient()) { socket, reader in
        let messages = ["", "one", String(repeating: "größer ", count: 20_000)].map { text in
          WebSocket.Message(isText: text != "one", bytes: Array(text.utf8))
        }
        for message in messages {
          try socket.send(message)
          #expect(try socket.receive(&reader) == message)
        }
        #expect(try socket.receive(&reader) == nil)
      }
    }.value
  }
}
