import Glibc

/// Bytes of a command, which lie in the reader's buffer until the command is done.
typealias Bytes = UnsafeRawBufferPointer

extension UnsafeRawBufferPointer {
  /// A number for choosing one of several parts: FNV-1a of the last eight bytes, in which keys differ most.
  var sum: Int {
    var sum: UInt32 = 2_166_136_261
    for byte in suffix(8) { sum = (sum ^ UInt32(byte)) &* 16_777_619 }
    return Int(sum >> 8)
  }

  /// Up to eight letters as a number, in upper case; nil if there are more.
  var packed: UInt64? {
    guard count <= 8 else { return nil }
    var packed: UInt64 = 0
    for byte in self { packed = packed << 8 | UInt64(byte & 0xDF) }
    return packed
  }

  /// Whether the bytes are these letters, in upper or lower case.
  func spell(_ word: StaticString) -> Bool {
    count == word.utf8CodeUnitCount && strncasecmp(baseAddress, word.utf8Start, count) == 0
  }

  /// The number whose decimal digits the bytes are, as Redis reads it: no sign but a minus, no leading zero.
  var number: Int? {
    guard var byte = first else { return nil }
    let isNegative = byte == UInt8(ascii: "-")
    let digits = isNegative ? dropFirst() : self[...]
    guard let leading = digits.first else { return nil }
    byte = leading
    if byte == UInt8(ascii: "0") { return digits.count == 1 && !isNegative ? 0 : nil }
    var number = 0
    for digit in digits {
      guard UInt8(ascii: "0")...UInt8(ascii: "9") ~= digit else { return nil }
      let tens = number.multipliedReportingOverflow(by: 10)
      let value = Int(digit &- UInt8(ascii: "0"))
      let sum = tens.partialValue.addingReportingOverflow(isNegative ? -value : value)
      if tens.overflow || sum.overflow { return nil }
      number = sum.partialValue
    }
    return number
  }
}

extension UnsafePointer<UInt8> {
  fileprivate var asCharacters: UnsafePointer<CChar> { UnsafeRawPointer(self).assumingMemoryBound(to: CChar.self) }
}

private func strncasecmp(_ one: UnsafeRawPointer?, _ other: UnsafePointer<UInt8>, _ count: Int) -> Int32 {
  guard let one else { return 0 }
  return Glibc.strncasecmp(one.assumingMemoryBound(to: CChar.self), other.asCharacters, count)
}
