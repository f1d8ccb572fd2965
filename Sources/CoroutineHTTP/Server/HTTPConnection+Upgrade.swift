#if HTTP
import CLLHTTP
import Coroutine
import CoroutineNet
import HTTPTypes

// The end of HTTP on a connection. Over TLS the program gets one end of a pair of local sockets; two coroutines carry
// bytes between the other end and TLS. So the program has a `Connection`, with all that uses one.
//
//   client == TLS == transport <-- carry --> outer -- pair -- inner: the program's

extension HTTPConnection {
  func upgrade(_ head: ServerResponse.Head, _ body: (Connection, inout BufferedReader) throws -> Void) throws {
    guard exchange.phase == .new else { throw HTTPError.headSent }
    guard let message, message.pointee.is_connect != 0 || message.pointee.is_upgrade != 0 else {
      throw HTTPError.notUpgraded
    }
    // The client sends the request's body first, and the protocol behind it.
    while exchange.body != .ended { if try !discardBody() { throw HTTPError.bodyTooLarge } }
    var head = head
    if message.pointee.is_connect != 0 {
      if head.status.kind != .successful { head.status = .ok }
      exchange.keepsAlive = true
      try appendHead(head, .none)
    } else {
      head.status = .switchingProtocols
      var fields = head.fields ?? [:]
      if fields[.upgrade] == nil { fields[.upgrade] = values(of: .upgrade) }
      head.fields = fields
      try appendHead(head, .none)
      output.truncate(to: output.count - 2)
      output.append("connection: upgrade\r\n\r\n")
    }
    exchange.phase = .ended
    exchange.isUpgraded = true
    try writing { try flush() }
    try enter(.upgraded)
    guard let tls = transport.tls else {
      let connection = transport.connection
      var reader = BufferedReader(connection, startingWith: Array(input.unread))
      return try body(connection, &reader)
    }
    try carry(tls, body)
  }

  private func carry(_ tls: TLS.Stream, _ body: (Connection, inout BufferedReader) throws -> Void) throws {
    let (inner, outer) = try Connection.pair()
    let first = [UInt8](input.unread)
    try co_scope(failures: .isolated) { scope in
      // Each direction ends the output of the other side when its own side has ended.
      let incoming = scope.launch(name: "from tls") {
        try outer.write(first)
        var buffer = [UInt8](repeating: 0, count: 16_384)
        while case let count = try buffer.withUnsafeMutableBytes({ try tls.read(into: $0) }), count > 0 {
          try outer.write(buffer[..<count])
        }
        try outer.shutdownWrite()
      }
      let outgoing = scope.launch(name: "to tls") {
        while case let bytes = try outer.read(upTo: 16_384), !bytes.isEmpty {
          try bytes.withUnsafeBytes { try tls.write($0) }
        }
        try tls.shutdownWrite()
      }
      defer {
        inner.close()
        // What was written leaves; what would arrive is nobody's.
        try? outgoing.join()
        incoming.cancel()
        outer.close()
      }
      var reader = BufferedReader(inner)
      try body(inner, &reader)
    }
  }
}
#endif
