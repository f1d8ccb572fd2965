/// Why a command has no result.
enum Refusal: Error {
  case wrongType
  case notInteger
  case overflow
  case negative
  case notPositive
  case notTime
  case negativeTime
  case syntax

  var text: StaticString {
    switch self {
    case .wrongType: "WRONGTYPE Operation against a key holding the wrong kind of value"
    case .notInteger: "ERR value is not an integer or out of range"
    case .overflow: "ERR increment or decrement would overflow"
    case .syntax: "ERR syntax error"
    case .negative: "ERR decrement would overflow"
    case .notPositive: "ERR value is out of range, must be positive"
    case .notTime: "ERR timeout is not a float or out of range"
    case .negativeTime: "ERR timeout is negative"
    }
  }
}

/// The replies to the commands of one read, which are written together.
struct Replies {
  private(set) var bytes: [UInt8] = []

  mutating func removeAll() {
    // A large reply must not cost memory for as long as the connection lives.
    if bytes.count > 65_536 { bytes = [] } else { bytes.removeAll(keepingCapacity: true) }
  }

  mutating func raw(_ text: StaticString) {
    bytes.append(contentsOf: UnsafeBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount))
  }

  mutating func ok() { raw("+OK\r\n") }
  mutating func null() { raw("$-1\r\n") }
  mutating func nullArray() { raw("*-1\r\n") }

  mutating func error(_ text: StaticString) {
    raw("-")
    raw(text)
    raw("\r\n")
  }

  mutating func error(_ text: String) { bytes += "-\(text)\r\n".utf8 }

  mutating func integer(_ number: Int) { line(UInt8(ascii: ":"), number) }
  mutating func array(_ count: Int) { line(UInt8(ascii: "*"), count) }

  mutating func text(_ text: [UInt8]) { text.withUnsafeBytes { self.text($0) } }

  mutating func text(_ text: Bytes) {
    line(UInt8(ascii: "$"), text.count)
    bytes.append(contentsOf: text)
    raw("\r\n")
  }

  private mutating func line(_ kind: UInt8, _ number: Int) {
    bytes.append(kind)
    if 0...9 ~= number { bytes.append(UInt8(ascii: "0") &+ UInt8(truncatingIfNeeded: number)) } else { digits(number) }
    raw("\r\n")
  }

  private mutating func digits(_ number: Int) {
    var rest = number.magnitude
    let start = bytes.count
    repeat {
      bytes.append(UInt8(ascii: "0") &+ UInt8(truncatingIfNeeded: rest % 10))
      rest /= 10
    } while rest > 0
    if number < 0 { bytes.append(UInt8(ascii: "-")) }
    bytes[start...].reverse()
  }
}
