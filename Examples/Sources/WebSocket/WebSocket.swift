import CWslay
import Coroutine
import CoroutineHTTP
import CoroutineNet
import HTTPTypes

/// A WebSocket (RFC 6455) on an upgraded connection: frames by wslay, whose callbacks only move bytes that are there.
///
/// One coroutine uses it. Each call reads or writes where it says so, so a slow peer stops it, and a deadline ends it.
final class WebSocket {
  struct Message: Equatable {
    var isText: Bool
    var bytes: [UInt8]
  }

  /// The peer broke the protocol; it was told so.
  struct ProtocolError: Error {}

  private let connection: Connection
  private var frames: wslay_event_context_ptr?
  /// Bytes on their way between the connection and wslay.
  private var input: [UInt8] = []
  private var taken = 0
  private var output: [UInt8] = []
  private var received: [Message] = []

  init(_ connection: Connection, isServer: Bool, largestMessage: UInt64 = 1 << 20) {
    self.connection = connection
    var callbacks = wslay_event_callbacks()
    callbacks.recv_callback = { frames, bytes, count, _, me in
      let socket = WebSocket.at(me)
      let size = min(count, socket.input.count - socket.taken)
      if size == 0 { wslay_event_set_error(frames, Int32(WSLAY_ERR_WOULDBLOCK.rawValue)) }
      socket.input[socket.taken..<socket.taken + size].withUnsafeBytes { from in
        UnsafeMutableRawBufferPointer(start: bytes, count: size).copyMemory(from: from)
      }
      socket.taken += size
      return size == 0 ? -1 : size
    }
    callbacks.send_callback = { _, bytes, count, _, me in
      WebSocket.at(me).output.append(contentsOf: UnsafeBufferPointer(start: bytes, count: count))
      return count
    }
    callbacks.genmask_callback = { _, bytes, count, _ in
      for index in 0..<count { bytes?[index] = .random(in: 0 ... .max) }
      return 0
    }
    callbacks.on_msg_recv_callback = { _, message, me in
      guard let message = message?.pointee, message.opcode & 8 == 0 else { return }
      let bytes = Array(UnsafeBufferPointer(start: message.msg, count: message.msg_length))
      WebSocket.at(me).received.append(Message(isText: message.opcode == 1, bytes: bytes))
    }
    let me = Unmanaged.passUnretained(self).toOpaque()
    let code =
      isServer
      ? wslay_event_context_server_init(&frames, &callbacks, me)
      : wslay_event_context_client_init(&frames, &callbacks, me)
    precondition(code == 0, "wslay has no memory")
    wslay_event_config_set_max_recv_msg_length(frames, largestMessage)
  }

  deinit { wslay_event_context_free(frames) }

  private static func at(_ me: UnsafeMutableRawPointer?) -> WebSocket {
    // Not nil: it is what `init` gave.
    Unmanaged<WebSocket>.fromOpaque(me.unsafelyUnwrapped).takeUnretainedValue()
  }

  /// The next message; nil after the peer has closed.
  ///
  /// Suspends until it is there. Answers pings and the close.
  func receive(_ reader: inout BufferedReader) throws -> Message? {
    while received.isEmpty {
      guard wslay_event_want_read(frames) != 0, try reader.fill() else { return nil }
      input = reader.withBuffered { Array($0) }
      reader.consume(input.count)
      taken = 0
      while taken < input.count, wslay_event_want_read(frames) != 0 {
        guard wslay_event_recv(frames) == 0 else {
          // The close that tells the peer is queued.
          try? flush()
          throw ProtocolError()
        }
      }
      try flush()
    }
    return received.removeFirst()
  }

  /// Sends a message; suspends while the peer takes nothing.
  func send(_ message: Message) throws {
    try message.bytes.withUnsafeBufferPointer { bytes in
      var queued = wslay_event_msg(opcode: message.isText ? 1 : 2, msg: bytes.baseAddress, msg_length: bytes.count)
      guard wslay_event_queue_msg(frames, &queued) == 0 else { throw ProtocolError() }
    }
    try flush()
  }

  /// Tells the peer that nothing follows; its messages can be received up to its own close.
  func close() throws {
    wslay_event_queue_close(frames, 1000, nil, 0)
    try flush()
  }

  private func flush() throws {
    while wslay_event_want_write(frames) != 0 {
      guard wslay_event_send(frames) == 0 else { throw ProtocolError() }
    }
    defer { output = [] }
    try connection.write(output)
  }
}

// MARK: - The handshake

extension HTTPField.Name {
  fileprivate static let key = Self("sec-websocket-key")!
  fileprivate static let accept = Self("sec-websocket-accept")!
  fileprivate static let version = Self("sec-websocket-version")!
}

extension WebSocket {
  /// Serves a request for a WebSocket; others are answered with 426, or 400.
  static func serve(
    _ request: borrowing ServerRequest,
    _ response: inout ServerResponse,
    _ body: (WebSocket, inout BufferedReader) throws -> Void
  ) throws {
    response.fields[.upgrade] = "websocket"
    response.fields[.version] = "13"
    guard request[.version] == "13", let key = request[.key] else {
      throw HTTPStatusError(.upgradeRequired, "ask for a WebSocket of version 13")
    }
    response.fields[.accept] = accept(key)
    try response.upgrade { connection, reader in
      try body(WebSocket(connection, isServer: true), &reader)
    }
  }

  /// Opens a WebSocket at a URL of http or https, and calls `body` with it.
  static func open<R>(
    _ url: String,
    with client: HTTPClient,
    _ body: (WebSocket, inout BufferedReader) throws -> R
  ) throws -> R {
    let key = base64((0..<16).map { _ in .random(in: 0 ... .max) })
    var request = try HTTPRequest(url: url)
    request.headerFields[.upgrade] = "websocket"
    request.headerFields[.version] = "13"
    request.headerFields[.key] = key
    let response = try client.send(request)
    guard response.head.headerFields[.accept] == accept(key) else { throw ProtocolError() }
    return try response.upgrade { connection, reader in
      try body(WebSocket(connection, isServer: false), &reader)
    }
  }

  private static func accept(_ key: String) -> String {
    let text = Array((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").utf8)
    var hash = [UInt8](repeating: 0, count: 20)
    SHA1(text, text.count, &hash)
    return base64(hash)
  }

  private static func base64(_ bytes: [UInt8]) -> String {
    var text = [UInt8](repeating: 0, count: (bytes.count + 2) / 3 * 4 + 1)
    EVP_EncodeBlock(&text, bytes, Int32(bytes.count))
    return String(decoding: text.dropLast(), as: UTF8.self)
  }
}
