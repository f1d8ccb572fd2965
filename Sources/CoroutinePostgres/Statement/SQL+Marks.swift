#if Postgres
// Reads the text of a statement: the parameters in it, and what its words say of its effect.
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
    var scanner = StatementScanner(bytes: text, count: count)
    scanner.scan()
    return scanner.marks
  }

  /// Reads the text before it is sent for the first time; returns whether it changes the session for longer.
  ///
  /// Throws what must not be sent: a zero byte, a value that the text does not use, and control of a transaction. For
  /// the server all are right: the text ends for it at a zero byte, also before a condition, and the types of all
  /// values come with the text, so it takes values that the text does not use. Every text comes by here before it is
  /// prepared or sent unnamed; what is prepared has been here.
  func changesSession() throws -> Bool {
    if let zero = utf8.firstIndex(of: 0) {
      let rule = "the text has a zero byte behind its first \(zero) bytes, where it would end for the server"
      throw PostgresError(.decoding, rule + "; leave it out, as no name and no text of a server has one")
    }
    var scanner = StatementScanner(bytes: utf8, count: values.count)
    scanner.scan()
    if !values.isEmpty {
      var isUsed = [Bool](repeating: false, count: values.count)
      for mark in scanner.marks { isUsed[mark.value] = true }
      if let unused = isUsed.firstIndex(of: false) {
        let rule =
          "the text does not use value \(unused + 1): inside of quotes, of a name or of a comment a value is no"
        throw PostgresError(.decoding, rule + " parameter; write it beside them, as in like '%' || $1 || '%'")
      }
    }
    if scanner.words.isControl {
      let rule = "a statement does not begin or end a transaction: use transaction(_:) and savepoint(_:)"
      throw PostgresError(.server, rule, sqlState: .notInThisTransaction)
    }
    return scanner.words.changesSession
  }
}

/// The words of a statement, outside of strings, names in quotes and comments, as far as they tell its effect.
///
/// What a function does cannot be seen, so this is a net for mistakes and no lock for attackers. A wrong "changes the
/// session" costs a reset of the connection, and nothing else.
struct StatementWords {
  private var first = ""
  private var second = ""
  private var last = ""
  private var others: Set<String> = []
  private var isWithHold = false

  private static let telling: Set<String> = [
    "temp", "temporary", "pg_temp", "into", "true", "false", "drop", "commit", "set_config", "pg_advisory_lock",
    "pg_advisory_lock_shared", "pg_try_advisory_lock", "pg_try_advisory_lock_shared", "pg_settings",
  ]

  mutating func append(_ word: ArraySlice<UInt8>) {
    // No word that tells something is longer.
    let text = word.count > 32 ? "" : String(decoding: word, as: UTF8.self).lowercased()
    if first.isEmpty { first = text } else if second.isEmpty { second = text }
    if text == "hold", last == "with" { isWithHold = true }
    // A column may have this name.
    let isName = text.hasPrefix("temp") && !["create", "replace", "local", "global", "into"].contains(last)
    if Self.telling.contains(text), !isName { others.insert(text) }
    last = text
  }

  /// Whether it begins or ends a transaction, or a part of one.
  var isControl: Bool {
    switch first {
    case "begin", "start", "commit", "end", "abort", "rollback", "savepoint", "release": true
    case "prepare": second == "transaction"
    default: false
    }
  }

  /// Whether it leaves something in the session that outlives the transaction.
  var changesSession: Bool {
    switch first {
    case "set": !["local", "transaction", "constraints"].contains(second)
    case "reset", "discard", "listen", "unlisten", "load", "prepare": true
    // Code, which may set anything.
    case "do", "call": true
    // Updates of this view are as SET.
    case "update" where others.contains("pg_settings"): true
    // With ANALYZE it is run.
    case "explain" where isTemporary: true
    case "declare" where isWithHold: true
    case "create": isTemporary && !others.isSuperset(of: ["commit", "drop"])
    case "select" where others.contains("into") && isTemporary, "with" where others.contains("into") && isTemporary:
      true
    default: takesSessionLock || (others.contains("set_config") && !isForTransaction)
    }
  }
  private var isTemporary: Bool { !others.isDisjoint(with: ["temp", "temporary", "pg_temp"]) }
  private var takesSessionLock: Bool { others.contains { $0.hasPrefix("pg_advisory_") || $0.hasPrefix("pg_try_") } }
  /// Of `set_config`: its third value, if that is in the text.
  private var isForTransaction: Bool { others.contains("true") && !others.contains("false") }
}

private struct StatementScanner {
  let bytes: [UInt8]
  let count: Int
  var at = 0
  var marks: [SQL.Mark] = []
  var words = StatementWords()

  init(bytes: [UInt8], count: Int) { (self.bytes, self.count) = (bytes, count) }

  mutating func scan() {
    while at < bytes.count {
      switch bytes[at] {
      case UInt8(ascii: "'"): skipQuoted(escapes: false)
      case UInt8(ascii: "\""): skipQuoted(escapes: false)
      case UInt8(ascii: "-") where follows("--"): skip { $0 == UInt8(ascii: "\n") || $0 == UInt8(ascii: "\r") }
      case UInt8(ascii: "/") where follows("/*"): skipComment()
      case UInt8(ascii: "$"): readDollar()
      case let byte where isWord(byte): readWord()
      default: at += 1
      }
    }
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
    } else {
      words.append(bytes[start..<at])
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
    guard escapes, at < bytes.count else { return }
    // The string may go on in another line.
    let blanks = bytes[at...].prefix { $0 == 32 || (9...13).contains($0) }
    let goesOn = blanks.isEmpty || blanks.contains(10) || blanks.contains(13)
    guard goesOn, blanks.endIndex < bytes.count, bytes[blanks.endIndex] == quote else { return }
    at = blanks.endIndex
    skipQuoted(escapes: true)
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
