#if HTTP
import CLLHTTP
import Glibc
import HTTPTypes

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
#endif
