#if HTTP
import CLLHTTP
import CoroutineNet
import Glibc
import HTTPTypes

// The bytes that a connection has received and not used.
//
//   memory   | used |  start: the head, kept while its message is served  | next ..< end: unread | room | capacity
//
// Invariants
//  1. 0 <= start <= start + kept <= next <= end <= capacity. Without memory all are 0.
//  2. The head of the current message stays in front of the unread bytes until `endMessage`, at an offset that may
//     change when bytes arrive. So whatever refers to it has offsets from `head`.
//  3. While nothing is kept and nothing is unread, the memory can be released: an idle connection has none.
//
// Owner: the connection's coroutine.

final class InputBuffer {
  private var memory: UnsafeMutableRawPointer?
  private var capacity = 0
  private var start = 0
  private var kept = 0
  private var next = 0
  private var end = 0

  private static var usual: Int { 4_096 }

  deinit { free(memory) }

  var unread: UnsafeRawBufferPointer {
    UnsafeRawBufferPointer(start: memory.map { UnsafeRawPointer($0 + next) }, count: end - next)
  }

  /// The first byte of the current message's head; `keep` has been called.
  var head: UnsafeRawPointer { UnsafeRawPointer(memory.unsafelyUnwrapped + start) }

  var isEmpty: Bool { next == end }

  /// Begins a message: the first `count` unread bytes are its head.
  func keep(_ count: Int) {
    start = next
    kept = count
    next += count
  }

  func drop(_ count: Int) { next += count }

  func endMessage() {
    kept = 0
    start = next
    if next == end { (start, next, end) = (0, 0, 0) }
  }

  /// Memory after the unread bytes, at least one byte.
  func room() -> UnsafeMutableRawBufferPointer {
    if memory == nil {
      capacity = Self.usual
      memory = Memory.resize(nil, capacity)
    } else if next == end {
      // Nothing is unread: the room begins behind the head.
      next = start + kept
      end = next
    }
    if end == capacity { makeRoom() }
    return UnsafeMutableRawBufferPointer(start: memory.unsafelyUnwrapped + end, count: capacity - end)
  }

  func received(_ count: Int) { end += count }

  private func makeRoom() {
    let old = memory.unsafelyUnwrapped
    // What is needed moves to the front: the head, and the unread bytes behind it.
    let unread = end - next
    let needed = kept + unread
    let isLarge = needed > capacity / 2
    let new = isLarge ? Memory.resize(nil, capacity * 2) : old
    memmove(new, old + start, kept)
    memmove(new + kept, old + next, unread)
    if isLarge {
      free(old)
      capacity *= 2
    }
    memory = new
    (start, next, end) = (0, kept, needed)
  }

  /// Releases the memory if nothing in it is needed.
  func releaseIfEmpty() {
    guard kept == 0, next == end else { return }
    free(memory)
    memory = nil
    (capacity, start, next, end) = (0, 0, 0, 0)
  }
}

// MARK: - Output

// The bytes of heads, small bodies and chunk sizes that are not written yet.
//
// Owner: the connection's coroutine.

final class OutputBuffer {
  private var memory: UnsafeMutableRawPointer?
  private var capacity = 0
  private(set) var count = 0

  deinit { free(memory) }

  var bytes: UnsafeRawBufferPointer { UnsafeRawBufferPointer(start: memory.map { UnsafeRawPointer($0) }, count: count) }

  func release() {
    free(memory)
    memory = nil
    (capacity, count) = (0, 0)
  }

  /// Forgets the bytes after the first `count`.
  func truncate(to count: Int) { self.count = count }

  @inline(__always)
  private func reserve(_ more: Int) -> UnsafeMutableRawPointer {
    if count + more > capacity { grow(more) }
    return memory.unsafelyUnwrapped + count
  }

  @inline(never)
  private func grow(_ more: Int) {
    capacity = max(512, (count + more) * 2)
    memory = Memory.resize(memory, capacity)
  }

  @inline(__always)
  func append(_ bytes: UnsafeRawBufferPointer) {
    guard let source = bytes.baseAddress, bytes.count > 0 else { return }
    reserve(bytes.count).copyMemory(from: source, byteCount: bytes.count)
    count += bytes.count
  }

  func append(_ text: StaticString) {
    append(UnsafeRawBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount))
  }

  func append(_ text: String) { withBytes(of: text) { append(UnsafeRawBufferPointer($0)) } }

  func append(decimal number: UInt64) { append(number, radix: 10) }

  func append(hexadecimal number: UInt64) { append(number, radix: 16) }

  private func append(_ number: UInt64, radix: UInt64) {
    withUnsafeTemporaryAllocation(byteCount: 20, alignment: 1) { digits in
      var rest = number
      var first = 20
      repeat {
        first -= 1
        let digit = UInt8(truncatingIfNeeded: rest % radix)
        digits[first] = digit < 10 ? UInt8(ascii: "0") + digit : UInt8(ascii: "a") + digit - 10
        rest /= radix
      } while rest > 0
      append(UnsafeRawBufferPointer(rebasing: digits[first...]))
    }
  }

  /// Appends a line `name: value`; returns false, and may have appended a part, if a byte would end the line.
  func append(field name: StaticString, _ value: String) -> Bool {
    append(name)
    append(": ")
    let isValid = withBytes(of: value) { appendValue($0) }
    append("\r\n")
    return isValid
  }

  /// As above; names of swift-http-types are tokens.
  func append(_ field: HTTPField) -> Bool {
    append(field.name.rawName)
    append(": ")
    let isValid = field.withUnsafeBytesOfValue { appendValue($0) }
    append("\r\n")
    return isValid
  }

  func appendValue(_ value: UnsafeBufferPointer<UInt8>) -> Bool {
    for byte in value where byte < 0x20 && byte != 0x09 || byte == 0x7f { return false }
    append(UnsafeRawBufferPointer(value))
    return true
  }

  /// The bytes of a text where they are, if it is in one piece: a copy of the text costs as much as that of its bytes.
  private func withBytes<R>(of text: String, _ body: (UnsafeBufferPointer<UInt8>) -> R) -> R {
    if let result = text.utf8.withContiguousStorageIfAvailable(body) { return result }
    var text = text
    return text.withUTF8(body)
  }

  func appendDate() {
    append("date: ")
    let into = reserve(29)
    chttp_date(into.assumingMemoryBound(to: CChar.self))
    count += 29
    append("\r\n")
  }
}

// MARK: - Transport

/// What a connection reads and writes with: the socket itself, or TLS on it.
struct Transport: Sendable {
  let connection: Connection
  let tls: TLS.Stream?

  /// Reads once; suspends if nothing has arrived.
  ///
  /// `beforeWaiting` releases memory that `room` allocates.
  func receive(beforeWaiting: () -> Void = {}, into room: () -> UnsafeMutableRawBufferPointer) throws -> Int {
    if let tls { return try tls.receive(beforeWaiting: beforeWaiting, into: room) }
    return try connection.receive(beforeWaiting: beforeWaiting, into: room)
  }

  /// Reads once, or returns nil if that would suspend.
  func receiveNow(into room: UnsafeMutableRawBufferPointer) throws -> Int? {
    if let tls { return try tls.receiveNow(into: room) }
    return try connection.receiveNow(into: room)
  }

  func write(
    _ first: UnsafeRawBufferPointer,
    _ second: UnsafeRawBufferPointer = .init(start: nil, count: 0),
    _ third: UnsafeRawBufferPointer = .init(start: nil, count: 0)
  ) throws {
    if let tls {
      for part in [first, second, third] where part.count > 0 { try tls.write(part) }
    } else if second.count == 0, third.count == 0 {
      try connection.write(first)
    } else {
      try connection.write(first, second, third)
    }
  }

  /// Ends the output; with TLS the peer is told first.
  func shutdownWrite() throws {
    if let tls { try tls.shutdownWrite() } else { try connection.shutdownWrite() }
  }
}

extension Transport {
  /// Closes the connection; with TLS the peer is told, if that needs no wait.
  func close() { if let tls { tls.close() } else { connection.close() } }
}

// MARK: - Memory

/// Memory of the buffers, by malloc itself: `allocate` of a pointer takes posix_memalign, for four times as long.
enum Memory {
  /// Returns memory of this size, with the bytes of `old`, which is released; free by `free`.
  static func resize(_ old: UnsafeMutableRawPointer?, _ size: Int) -> UnsafeMutableRawPointer {
    guard let new = realloc(old, size) else { fatalError("there is no memory for a buffer of \(size) bytes") }
    return new
  }
}
#endif
