/// Finds commands in received bytes, and the words of each.
///
/// A command is an array of byte strings ("*2\r\n$3\r\nGET\r\n$1\r\na\r\n"), or a line of words ("GET a\r\n"), as
/// people type it.
struct Request {
  enum Outcome {
    /// The command has so many bytes.
    case complete(Int)
    case incomplete
    /// The bytes are no command; the connection ends after this reply.
    case wrong(String)
  }

  /// Where the words of the command are in the bytes.
  private(set) var words: [Range<Int>] = []

  private static let mostWords = Int(Int32.max)
  private static let longestWord = 512 << 20
  /// The longest line, as in Redis.
  private static let longestLine = 65_536

  /// Reads the command at the beginning of `bytes`.
  mutating func read(_ bytes: Bytes) -> Outcome {
    words.removeAll(keepingCapacity: true)
    guard let first = bytes.first else { return .incomplete }
    return first == UInt8(ascii: "*") ? readArray(bytes) : readLine(bytes)
  }

  private mutating func readArray(_ bytes: Bytes) -> Outcome {
    var position = 1
    guard let count = Self.length(bytes, &position) else {
      return Self.isOpen(bytes, position) ? .incomplete : .wrong("ERR Protocol error: invalid multibulk length")
    }
    guard count <= Self.mostWords else { return .wrong("ERR Protocol error: invalid multibulk length") }
    for _ in 0..<max(0, count) {
      guard position < bytes.count else { return .incomplete }
      guard bytes[position] == UInt8(ascii: "$") else {
        return .wrong("ERR Protocol error: expected '$', got '\(Character(Unicode.Scalar(bytes[position])))'")
      }
      position += 1
      let start = position
      guard let length = Self.length(bytes, &position) else {
        return Self.isOpen(bytes, start) ? .incomplete : .wrong("ERR Protocol error: invalid bulk length")
      }
      guard 0...Self.longestWord ~= length else { return .wrong("ERR Protocol error: invalid bulk length") }
      guard bytes.count - position >= length + 2 else { return .incomplete }
      words.append(position..<position + length)
      position += length + 2
    }
    return .complete(position)
  }

  /// Reads a number and the end of its line, and moves `position` after it; nil if it is none, or not yet complete.
  @inline(__always)
  private static func length(_ bytes: Bytes, _ position: inout Int) -> Int? {
    var index = position
    var number = 0
    let isNegative = index < bytes.count && bytes[index] == UInt8(ascii: "-")
    if isNegative { index += 1 }
    let start = index
    while index < bytes.count {
      let digit = bytes[index] &- UInt8(ascii: "0")
      guard digit <= 9, index - start < 18 else { break }
      number = number &* 10 &+ Int(digit)
      index += 1
    }
    guard index > start, index + 1 < bytes.count, bytes[index] == 13, bytes[index + 1] == 10 else { return nil }
    position = index + 2
    return isNegative ? -number : number
  }

  /// Whether the line from `start` on has not ended, and may still become right.
  private static func isOpen(_ bytes: Bytes, _ start: Int) -> Bool {
    bytes.count - start < 64 && !bytes[start...].contains(10)
  }

  private mutating func readLine(_ bytes: Bytes) -> Outcome {
    guard let end = bytes.firstIndex(of: 10) else {
      return bytes.count > Self.longestLine ? .wrong("ERR Protocol error: too big inline request") : .incomplete
    }
    var start: Int?
    for index in 0...end {
      let isSpace = bytes[index] == 32 || 9...13 ~= bytes[index]
      if isSpace, let first = start {
        words.append(first..<index)
        start = nil
      } else if !isSpace, start == nil {
        start = index
      }
    }
    return .complete(end + 1)
  }
}
