import Coroutine
import CoroutineNet
import Harness

/// Selects over a wire protocol of our own: the least that a driver over CoroutineNet could cost.
///
/// It checks that each statement has a row, and decodes nothing. With `batch` above 1 a connection sends so many
/// statements at once, each with a sync of its own, as a pipeline would for as many coroutines.
struct RawWire: Sendable {
  private let address: SocketAddress
  private let clients: Int
  private let scale: Int
  private let batch: Int

  /// - Parameter folder: That of the server's Unix socket.
  init(folder: String, clients: Int, scale: Int, batch: Int) throws {
    address = try .unix(folder + "/.s.PGSQL.5432")
    (self.clients, self.scale, self.batch) = (clients, scale, batch)
  }

  func select(_ limit: Limit) throws {
    try load(clients: clients, limit, times: batch) { client, loop in
      var numbers = Numbers(seed: client)
      let connection = try Connection.connect(to: address)
      defer { connection.close() }
      var input = Input(connection)
      try connection.write(Message.start)
      try input.skip(readies: 1)
      try connection.write(Message.prepare)
      try input.skip(readies: 1)
      try loop {
        var output: [UInt8] = []
        output.reserveCapacity(64 * batch)
        for _ in 0..<batch { Message.select(Int32.random(in: 1...100_000 * Int32(scale), using: &numbers), &output) }
        try connection.write(output)
        expect(try input.skip(readies: batch), equals: batch, "rows")
      }
    }
  }
}

/// What the server says, read in large pieces.
private struct Input {
  private let connection: Connection
  private var bytes = [UInt8](repeating: 0, count: 16_384)
  private var start = 0
  private var end = 0

  init(_ connection: Connection) { self.connection = connection }

  /// Reads messages up to this number of "ready for query"; returns the number of rows.
  @discardableResult
  mutating func skip(readies: Int) throws -> Int {
    var (seen, rows) = (0, 0)
    while seen < readies {
      guard end - start >= 5, case let length = Int(big(start + 1)), end - start > length else {
        try more()
        continue
      }
      switch bytes[start] {
      case UInt8(ascii: "Z"): seen += 1
      case UInt8(ascii: "D"): rows += 1
      case UInt8(ascii: "E"):
        fail("the server refuses: \(String(decoding: bytes[start..<start + length], as: UTF8.self))")
      default: break
      }
      start += length + 1
    }
    return rows
  }

  private func big(_ at: Int) -> Int32 { bytes[at..<at + 4].reduce(0) { $0 << 8 | Int32($1) } }

  private mutating func more() throws {
    if start > 0 {
      bytes.replaceSubrange(0..<end - start, with: Array(bytes[start..<end]))
      (start, end) = (0, end - start)
    }
    let count = try bytes.withUnsafeMutableBytes { [end] in
      try connection.read(into: UnsafeMutableRawBufferPointer(rebasing: $0[end...]))
    }
    expect(count > 0, "the server keeps the connection")
    end += count
  }
}

private enum Message {
  static let sync: [UInt8] = [UInt8(ascii: "S"), 0, 0, 0, 4]

  static var start: [UInt8] {
    let body = big(196_608) + Array("user\0postgres\0database\0postgres\0\0".utf8)
    return big(Int32(body.count + 4)) + body
  }

  /// The statement `s`, with one parameter of type int4.
  static var prepare: [UInt8] {
    let text = "s\0select abalance from pgbench_accounts where aid = $1\0"
    let body = Array(text.utf8) + [0, 1] + big(23)
    return [UInt8(ascii: "P")] + big(Int32(body.count + 4)) + body + sync
  }

  /// Bind, execute and sync; all values in the binary format.
  static func select(_ account: Int32, _ output: inout [UInt8]) {
    output.append(UInt8(ascii: "B"))
    output += [0, 0, 0, 25, 0, UInt8(ascii: "s"), 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 4]
    withUnsafeBytes(of: account.bigEndian) { output.append(contentsOf: $0) }
    output += [0, 1, 0, 1]
    output += [UInt8(ascii: "E"), 0, 0, 0, 9, 0, 0, 0, 0, 0]
    output += sync
  }

  private static func big(_ number: Int32) -> [UInt8] { withUnsafeBytes(of: number.bigEndian) { Array($0) } }
}
