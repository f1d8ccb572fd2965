import Coroutine
import Glibc

/// Reads structured input from a connection, without a system call for each piece.
///
/// <!-- compiled: Tests/CoroutineNetTests/SocketSnippets.swift -->
/// ```swift
/// while try reader.waitForMessage() {
///   guard let line = try reader.readLine(max: 1_000) else { break }
///   if line == "STARTTLS" { return try secure(connection, after: reader.takeBuffered()) }
///   guard line.hasPrefix("GET ") else {
///     try connection.write("no such command\n".utf8)
///     return try connection.closeLingering()
///   }
///   try connection.write("\(line)\n".utf8)
/// }
/// ```
///
/// A reader may have received more bytes than it has returned. So a connection has one reader, and no other code reads
/// from it before ``takeBuffered()`` has ended the reader. While the reader waits without any received byte, it holds
/// no buffer.
///
/// Every function suspends until enough bytes have arrived, and throws the errors of ``Connection/read(into:)``. So it
/// throws in a cancelled coroutine, and outside of one, also if the reader holds what it is to return. If it throws,
/// nothing is consumed: after a deadline or a cancellation, the same call continues with the bytes that have arrived.
public struct BufferedReader: ~Copyable {
  let connection: Connection
  let buffer: ReadBuffer

  /// Creates a reader; `capacity` is the usual size of its buffer in bytes.
  public init(_ connection: Connection, capacity: Int = 16_384) {
    self.connection = connection
    buffer = ReadBuffer(capacity: capacity)
  }

  /// Creates a reader that returns `bytes` first: what a former reader has read ahead (``takeBuffered()``).
  ///
  /// So another coroutine can take a connection over in the middle of its stream. `capacity` is the usual size of the
  /// buffer in bytes.
  public init(_ connection: Connection, startingWith bytes: [UInt8], capacity: Int = 16_384) {
    self.connection = connection
    buffer = ReadBuffer(capacity: capacity, startingWith: bytes)
  }

  /// Reads exactly `count` bytes.
  ///
  /// - Throws: ``NetError/endOfStream`` if the stream ends before; the received bytes stay in the reader.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public mutating func read(exactly count: Int) throws -> [UInt8] {
    try co_checkCancelled()
    try fill(to: count)
    return buffer.take(max(0, count))
  }

  /// Suspends until `count` bytes are in the buffer.
  private func fill(to count: Int) throws {
    while buffer.bytes.count < count {
      if try !buffer.fill(from: connection) { throw NetError(.endOfStream, "reading from", connection.remoteAddress) }
    }
  }

  /// Reads up to a delimiter, which is consumed and not returned.
  ///
  /// - Parameters:
  ///   - delimiter: The byte to look for.
  ///   - max: The largest number of bytes before the delimiter.
  /// - Returns: The bytes before the delimiter; nil if the stream has ended and no byte is left.
  /// - Throws: ``NetError/tooLong`` if more than `max` bytes arrive without a delimiter. ``NetError/endOfStream`` if
  ///   the stream ends before the delimiter. In both cases, the received bytes stay in the reader.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public mutating func read(until delimiter: UInt8, max: Int) throws -> [UInt8]? {
    try co_checkCancelled()
    guard let count = try find(delimiter, max) else { return nil }
    let bytes = buffer.take(count)
    buffer.drop(1)
    return bytes
  }

  /// Suspends until a delimiter is in the buffer.
  ///
  /// Returns the number of bytes before it; nil if the stream has ended and the buffer is empty.
  private func find(_ delimiter: UInt8, _ max: Int) throws -> Int? {
    var searched = 0
    while true {
      let bytes = buffer.bytes
      if bytes.count > searched, let start = bytes.baseAddress {
        let found = memchr(start + searched, Int32(delimiter), bytes.count - searched)
        if let found {
          let count = UnsafeRawPointer(found) - start
          if count > max { throw NetError(.tooLong, "reading from", connection.remoteAddress) }
          return count
        }
      }
      searched = bytes.count
      if searched > max { throw NetError(.tooLong, "reading from", connection.remoteAddress) }
      if try !buffer.fill(from: connection) {
        if searched == 0 { return nil }
        throw NetError(.endOfStream, "reading from", connection.remoteAddress)
      }
    }
  }

  /// Reads a line, which ends with LF or CRLF; neither is returned.
  ///
  /// Bytes that are not valid UTF-8 become U+FFFD.
  ///
  /// - Parameter max: The largest number of bytes of the line, without its end.
  /// - Returns: The line; nil if the stream has ended and no byte is left.
  /// - Throws: ``NetError/tooLong`` if the line has more than `max` bytes. ``NetError/endOfStream`` if the stream ends
  ///   in the middle of a line, so that an incomplete line is never returned. In both cases, the received bytes stay in
  ///   the reader.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public mutating func readLine(max: Int = 8192) throws -> String? {
    try co_checkCancelled()
    // One byte more, for the CR.
    let limit = Swift.max(0, max)
    guard let count = try find(UInt8(ascii: "\n"), limit < Int.max ? limit + 1 : limit) else { return nil }
    let line = buffer.bytes.prefix(count)
    let length = line.last == UInt8(ascii: "\r") ? count - 1 : count
    if length > limit { throw NetError(.tooLong, "reading from", connection.remoteAddress) }
    let text = String(decoding: line.prefix(length), as: UTF8.self)
    buffer.drop(count + 1)
    return text
  }

  /// Reads an integer in network byte order: the most significant byte first.
  ///
  /// - Throws: ``NetError/endOfStream`` if the stream ends before; the received bytes stay in the reader.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public mutating func readInteger<T: FixedWidthInteger>(_ type: T.Type) throws -> T {
    try co_checkCancelled()
    let count = MemoryLayout<T>.size
    try fill(to: count)
    var value: T = 0
    withUnsafeMutableBytes(of: &value) { $0.copyBytes(from: buffer.bytes.prefix(count)) }
    buffer.drop(count)
    return T(bigEndian: value)
  }

  /// Reads everything up to the end of the stream.
  ///
  /// - Throws: ``NetError/tooLong`` if more than `max` bytes arrive; the received bytes stay in the reader.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public mutating func readAll(max: Int) throws -> [UInt8] {
    try co_checkCancelled()
    repeat {
      if buffer.bytes.count > max { throw NetError(.tooLong, "reading from", connection.remoteAddress) }
    } while try buffer.fill(from: connection)
    return buffer.take(buffer.bytes.count)
  }
}
