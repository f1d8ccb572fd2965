import Coroutine
import CoroutineNet
import MinimalHTTP

/// One connection: its coroutine reads, and replies to what it has read, until the client ends it.
struct Session {
  /// How a connection is read.
  enum Reading {
    /// Into a buffer on the coroutine's stack.
    case intoBuffer
    /// The same, with a deadline on each read.
    case withDeadline
    /// As arrays: the connection has no buffer while it waits.
    case asArrays
    /// The same, with a deadline on each read.
    case asArraysWithDeadline
    /// As lines, by a BufferedReader, which has no buffer while it waits.
    case asLines
    /// By a BufferedReader that waits for messages, or for a fixed number of bytes; for echoes.
    case asMessages, inBlocks
  }

  private static var capacity: Int { 4096 }

  let connection: Connection
  let reading: Reading

  func echo() throws {
    switch reading {
    case .asLines: return try forEachLine { try connection.write(Array("\($0)\n".utf8)) }
    case .asMessages: return try echoMessages()
    case .inBlocks: return try echoBlocks()
    default: break
    }
    try forEachRead { try connection.write($0) }
  }

  func answer() throws {
    if reading == .asLines {
      // The empty line ends a request.
      return try forEachLine { if $0.isEmpty { try connection.write(response) } }
    }
    var counter = RequestCounter()
    try forEachRead { bytes in
      switch counter.ends(in: bytes) {
      case 0: break
      case 1: try response.withUnsafeBytes { try connection.write($0) }
      case let ends: try connection.write([[UInt8]](repeating: response, count: ends))
      }
    }
  }

  private func forEachRead(_ body: (UnsafeRawBufferPointer) throws -> Void) throws {
    switch reading {
    case .asArrays: try forEachArray(body)
    case .asArraysWithDeadline: try forEachArrayInTime(body)
    default: try forEachBuffer(body)
    }
  }

  /// In a function of its own: the frame of the other one contains a buffer, which costs a connection a page.
  @inline(never)
  private func forEachArray(_ body: (UnsafeRawBufferPointer) throws -> Void) throws {
    while case let bytes = try connection.read(upTo: Self.capacity), !bytes.isEmpty { try bytes.withUnsafeBytes(body) }
  }

  @inline(never)
  private func forEachArrayInTime(_ body: (UnsafeRawBufferPointer) throws -> Void) throws {
    while true {
      let bytes = try co_timeout(.seconds(30)) { try connection.read(upTo: Self.capacity) }
      if bytes.isEmpty { return }
      try bytes.withUnsafeBytes(body)
    }
  }

  @inline(never)
  private func echoMessages() throws {
    var reader = BufferedReader(connection, capacity: Self.capacity)
    while try reader.waitForMessage() { try connection.write(try reader.read(upTo: Self.capacity)) }
  }

  /// The load's messages have 64 bytes.
  @inline(never)
  private func echoBlocks() throws {
    var reader = BufferedReader(connection, capacity: Self.capacity)
    while true { try connection.write(try reader.read(exactly: 64)) }
  }

  @inline(never)
  private func forEachBuffer(_ body: (UnsafeRawBufferPointer) throws -> Void) throws {
    try withUnsafeTemporaryAllocation(byteCount: Self.capacity, alignment: 16) { buffer in
      while case let count = try read(into: buffer), count > 0 {
        try body(UnsafeRawBufferPointer(rebasing: buffer[..<count]))
      }
    }
  }

  @inline(never)
  private func forEachLine(_ body: (String) throws -> Void) throws {
    var reader = BufferedReader(connection, capacity: Self.capacity)
    while let line = try reader.readLine() { try body(line) }
  }

  private func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    guard reading == .withDeadline else { return try connection.read(into: buffer) }
    return try co_timeout(.seconds(30)) { try connection.read(into: buffer) }
  }
}
