#if HTTP
import Coroutine
import CoroutineHTTP
import CoroutineNet
import Glibc
import HTTPTypes
import Testing

/// A real peer of an upgrade: Python's websockets, against a handshake and an echo of frames.
///
/// A WebSocket product is not a part of the library, so the frames are read here, as far as the test needs them.
@Suite("Upgrades to WebSocket", .timeLimit(.minutes(10)))
struct WebSocketTests {
  private static let client = """
    import sys, asyncio, websockets
    async def main():
      async with websockets.connect("ws://127.0.0.1:" + sys.argv[1] + "/echo") as socket:
        for size in (0, 5, 200, 70000):
          await socket.send("a" * size)
          print(len(await socket.recv()))
    asyncio.run(main())
    """

  /// Debian's python3, because python3-websockets is of Debian.
  private static let python = access("/usr/bin/python3", X_OK) == 0 ? "/usr/bin/python3" : "python3"

  /// The value of `sec-websocket-accept` (RFC 6455, 4.2.2), by openssl.
  private static func accept(_ key: String) throws -> String {
    let text = Array((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").utf8)
    let hash = try Peer.run("openssl", "dgst", "-sha1", "-binary", input: text).output
    let encoded = try Peer.run("openssl", "base64", input: hash).output
    return String(decoding: encoded, as: UTF8.self).filter { !$0.isNewline }
  }

  /// Echoes frames until a frame of close.
  private static func echo(_ connection: Connection, _ reader: inout BufferedReader) throws {
    while true {
      let first = try reader.readInteger(UInt8.self)
      var length = Int(try reader.readInteger(UInt8.self) & 0x7f)
      if length == 126 { length = Int(try reader.readInteger(UInt16.self)) }
      if length == 127 { length = Int(try reader.readInteger(UInt64.self)) }
      let mask = try reader.read(exactly: 4)
      let data = try reader.read(exactly: length).enumerated().map { $1 ^ mask[$0 % 4] }
      var head = [first]
      switch length {
      case ..<126: head.append(UInt8(length))
      case ..<65_536: head += [126, UInt8(length >> 8), UInt8(length & 0xff)]
      default: head += [127] + (0..<8).map { UInt8(truncatingIfNeeded: length >> (56 - 8 * $0)) }
      }
      try connection.write([head, data])
      if first & 0x0f == 8 { return }
    }
  }

  private static let hasWebSockets =
    (try? Peer.runHere(python, ["-c", "import websockets"]).status) == 0

  @Test(.enabled(if: hasWebSockets, "needs python3-websockets: scripts/setup http"))
  func `a Python client of WebSocket gets its frames back`() async throws {
    try await onCoroutine {
      try serving { request, response in
        guard let key = request[HTTPField.Name("sec-websocket-key")!] else { throw HTTPStatusError(.badRequest) }
        response.fields[HTTPField.Name("sec-websocket-accept")!] = try Self.accept(key)
        try response.upgrade { connection, reader in try Self.echo(connection, &reader) }
      } _: { server in
        let end = try Peer.run(Self.python, "-c", Self.client, "\(server.port)")
        #expect(String(decoding: end.output, as: UTF8.self) == "0\n5\n200\n70000\n")
        #expect(server.errors.current.isEmpty)
      }
    }
  }
}
#endif
