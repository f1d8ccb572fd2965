#if Postgres
// Finds the parameters in a text that somebody else has written, so that it can become a part of another statement.
//
// A dollar sign with digits is a parameter, but not
//   - in a string, 'it''s' or E'it\'s', or in a name, "a""b";
//   - in a string between dollar signs, $$…$$ or $tag$…$tag$;
//   - in a comment, --… or /*…/*…*/…*/;
//   - inside of a word: a$1 is a name.
// What is not closed ends with the text: the server refuses it then.

extension SQL {
  /// The parameters of `text` whose numbers are 1 to `count`, in their order.
  static func marks(in text: [UInt8], count: Int) -> [Mark] {
    var scanner = MarkScanner(bytes: text, count: count)
    return scanner.scan()
  }
}

private struct MarkScanner {
  let bytes: [UInt8]
  let count: Int
  var at = 0
  var marks: [SQL.Mark] = []

  init(bytes: [UInt8], count: Int) { (self.bytes, self.count) = (bytes, count) }

  mutating func scan() -> [SQL.Mark] {
    while at < bytes.count {
      switch bytes[at] {
      case UInt8(ascii: "'"): skipQuoted(escapes: false)
      case UInt8(ascii: "\""): skipQuoted(escapes: false)
      case UInt8(ascii: "-") where follows("--"): skip { $0 == UInt8(ascii: "\n") }
      case UInt8(ascii: "/") where follows("/*"): skipComment()
      case UInt8(ascii: "$"): readDollar()
      case let byte where isWord(byte): readWord()
      default: at += 1
      }
    }
    return marks
  }

  private func isDigit(_ byte: UInt8) -> Bool { byte >= 48 && byte <= 57 }
  private func isWord(_ byte: UInt8) -> Bool {
    byte >= 128 || byte == UInt8(ascii: "_") || isDigit(byte) || (byte | 32 >= 97 && byte | 32 <= 122)
  }
  private func follows(_ text: StaticString) -> Bool {
    text.withUTF8Buffer { at + $0.count <= bytes.count && bytes[at..<at + $0.count].elementsEqual($0) }
  }
  private mutating func skip(until ends: (UInt8) -> Bool) {
    while at < bytes.count, !ends(bytes[at]) { at += 1 }
  }

  /// A word, with dollar signs inside of it; E'…' is a string with backslashes.
  private mutating func readWord() {
    let start = at
    while at < bytes.count, isWord(bytes[at]) || bytes[at] == UInt8(ascii: "$") { at += 1 }
    if at == start + 1, bytes[start] | 32 == UInt8(ascii: "e"), at < bytes.count, bytes[at] == UInt8(ascii: "'") {
      skipQuoted(escapes: true)
    }
  }

  private mutating func skipQuoted(escapes: Bool) {
    let quote = bytes[at]
    at += 1
    while at < bytes.count, bytes[at] != quote {
      // A backslash takes the byte behind it along.
      at += escapes && bytes[at] == UInt8(ascii: "\\") ? 2 : 1
    }
    at += 1  // a doubled quote begins another string at once, which is skipped in the same way
    if escapes, at < bytes.count, bytes[at] == quote { skipQuoted(escapes: true) }
  }

  private mutating func skipComment() {
    var depth = 0
    repeat {
      if follows("/*") {
        depth += 1
        at += 2
      } else if follows("*/") {
        depth -= 1
        at += 2
      } else {
        at += 1
      }
    } while depth > 0 && at < bytes.count
  }

  /// A parameter, or the start of a string between dollar signs.
  private mutating func readDollar() {
    let start = at
    at += 1
    if at < bytes.count, isDigit(bytes[at]) {
      skip { !($0 >= 48 && $0 <= 57) }
      let digits = String(decoding: bytes[start + 1..<at], as: UTF8.self)
      if let number = Int(digits), number >= 1, number <= count {
        marks.append(SQL.Mark(offset: start, length: at - start, value: number - 1))
      }
      return
    }
    while at < bytes.count, isWord(bytes[at]) { at += 1 }
    guard at < bytes.count, bytes[at] == UInt8(ascii: "$") else { return }
    at += 1
    let tag = bytes[start..<at]
    while at < bytes.count, !bytes[at...].starts(with: tag) { at += 1 }
    at = min(bytes.count, at + tag.count)
  }
}
#endif
