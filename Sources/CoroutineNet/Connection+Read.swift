internal import CLinux
import Coroutine
import Glibc

extension Connection {
  /// Reads the bytes that have arrived: at least one, and at most as many as fit.
  ///
  /// Suspends if none has arrived. Bytes, the end of the stream, an error of the connection or a close resume it.
  ///
  /// The buffer is the caller's, so it takes its memory also while the coroutine waits, and on the stack it keeps the
  /// pages above and below. Where many connections are idle, ``read(upTo:)`` and ``BufferedReader`` need memory for the
  /// bytes that have arrived only.
  ///
  /// - Returns: The number of bytes; 0 at the end of the stream, and if the buffer has no room.
  /// - Throws: ``NetError``: `ECONNRESET` if the peer has reset the connection. See ``Connection`` for the errors of
  ///   all operations.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    try claiming(.reading, "reading from") {
      guard buffer.count > 0, let bytes = buffer.baseAddress else { return 0 }
      return Int(try socket.perform(.reading) { Self.receive($0, bytes, buffer.count) })
    }
  }

  /// Reads the bytes that have arrived, at least one and at most `count`.
  ///
  /// While the coroutine waits, no memory is allocated for the bytes. In all other respects it behaves as
  /// ``read(into:)`` does.
  ///
  /// - Returns: The bytes; an empty array at the end of the stream, and if `count` is not positive.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func read(upTo count: Int) throws -> [UInt8] {
    try claiming(.reading, "reading from") {
      var bytes: [UInt8] = []
      guard count > 0 else { return bytes }
      _ = try socket.perform(.reading) {
        // An attempt that found nothing has left its memory in `bytes`.
        bytes = []
      } _: { number in
        var attempt = WatchedDescriptor.Attempt(0)
        let room = Self.room(number, count)
        bytes = [UInt8](unsafeUninitializedCapacity: room) { buffer, filled in
          attempt = Self.receive(number, UnsafeMutableRawPointer(buffer.baseAddress.unsafelyUnwrapped), room)
          filled = Int(max(0, attempt.result))
        }
        return attempt
      }
      // A few bytes must not retain a large buffer.
      return bytes.count < bytes.capacity / 2 ? bytes.withUnsafeBufferPointer { Array($0) } : bytes
    }
  }

  /// The number of bytes above which the system is asked how many have arrived, before memory is allocated.
  private static var large: Int { 65_536 }

  private static func room(_ number: Int32, _ count: Int) -> Int {
    count <= large ? count : min(count, max(large, Int(clinux_readable_bytes(number))))
  }

  static func receive(_ number: Int32, _ bytes: UnsafeMutableRawPointer, _ count: Int) -> WatchedDescriptor.Attempt {
    let result = clinux_receive(number, bytes, count)
    return .init(result, isShort: result > 0 && result < Int64(count))
  }
}
