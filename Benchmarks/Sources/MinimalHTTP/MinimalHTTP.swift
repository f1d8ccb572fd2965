/// The response that every server of `run-net` but Go's net/http sends, byte by byte the same.
package let response: [UInt8] = Array(
  "HTTP/1.1 200 OK\r\nContent-Length: 13\r\nContent-Type: text/plain\r\n\r\nHello, World!".utf8
)

/// Finds the ends of requests without a body in a stream of bytes.
///
/// The servers in C, C++ and Go do the same.
package struct RequestCounter {
  /// The number of bytes of the empty line, CR LF CR LF, that the last bytes are.
  @usableFromInline var matched: UInt8 = 0

  @inlinable
  package init() {}

  /// Returns the number of requests that end in `bytes`, which follow those of the last call.
  @inlinable
  package mutating func ends(in bytes: UnsafeRawBufferPointer) -> Int {
    var ends = 0
    for byte in bytes {
      if byte == (matched & 1 == 0 ? 13 : 10) {
        matched &+= 1
        if matched == 4 {
          ends &+= 1
          matched = 0
        }
      } else {
        matched = byte == 13 ? 1 : 0
      }
    }
    return ends
  }
}
