import Coroutine
import CoroutineNet
import Glibc

/// A DNS server (RFC 1035) that answers from this machine's own resolver: /etc/hosts, and the name servers behind it.
///
/// Its socket may serve all addresses of a machine. Each answer comes from the address that was asked.
enum NameServer {
  /// Answers questions until it is cancelled or the socket is closed; at most `limit` lookups wait at once.
  static func run(_ socket: DatagramSocket, limit: Int = 1_000) throws {
    let permits = FairSemaphore(limit)
    let room = UnsafeMutableRawBufferPointer.allocate(byteCount: 512, alignment: 1)
    defer { room.deallocate() }
    try co_scope { scope in
      while true {
        do {
          let (count, client, asked) = try socket.receiveMessage(into: room)
          guard let question = Question(Array(room.prefix(count))), permits.tryAcquire() else { continue }
          scope.launch {
            defer { permits.release() }
            // A client that has gone, or whose address lies behind a route that fails, is no error of the server.
            try? socket.send(answer(to: question), to: client, from: asked)
          }
        } catch NetError.tooLong {}
      }
    }
  }

  private static func answer(to question: Question) throws -> [UInt8] {
    let family = [1: AF_INET, 28: AF_INET6][question.type]
    do {
      let found = try SocketAddress.resolve(question.name, port: 0).compactMap { family.flatMap($0.bytes) }
      return question.response(code: 0, found)
    } catch let error as NetError {
      return question.response(code: error.reason == .noSuchName ? 3 : 2, [])
    }
  }
}

extension SocketAddress {
  /// The bytes of the address; nil if it is of another family.
  fileprivate func bytes(of family: Int32) -> [UInt8]? {
    let size = family == AF_INET ? 4 : 16
    let host = description.prefix { family == AF_INET ? $0 != ":" : $0 != "]" && $0 != "%" }
    var bytes = [UInt8](repeating: 0, count: size)
    return inet_pton(family, host.trimmingPrefix("[").description, &bytes) == 1 ? bytes : nil
  }
}

private struct Question {
  let name: String
  let type: Int
  /// The header's first four bytes, and the question as it came.
  private let header: ArraySlice<UInt8>
  private let text: ArraySlice<UInt8>

  /// Nil if the message is no question with one name.
  init?(_ message: [UInt8]) {
    guard message.count > 16, message[2] & 0xF8 == 0, message[4] == 0, message[5] == 1 else { return nil }
    var labels: [String] = []
    var next = 12
    while next < message.count, case let length = Int(message[next]), length > 0 {
      guard length < 64, next + length < message.count else { return nil }
      labels.append(String(decoding: message[next + 1...next + length], as: UTF8.self))
      next += length + 1
    }
    guard next + 4 < message.count else { return nil }
    name = labels.joined(separator: ".")
    type = Int(message[next + 1]) << 8 | Int(message[next + 2])
    (header, text) = (message[..<4], message[12...next + 4])
  }

  func response(code: UInt8, _ addresses: [[UInt8]]) -> [UInt8] {
    let flags = [0x80 | header[2], 0x80 | code]
    var bytes = header[..<2] + flags + [0, 1, 0, UInt8(addresses.count), 0, 0, 0, 0] + text
    // A pointer to the name, the type, the class, a minute to live, the length.
    for address in addresses {
      bytes += [0xC0, 12, 0, UInt8(type), 0, 1, 0, 0, 0, 60, 0, UInt8(address.count)] + address
    }
    return Array(bytes)
  }
}
