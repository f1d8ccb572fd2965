#if Postgres
internal import CPostgres
import Coroutine

// Rows as the server sends them. A query has a cursor, which ends early without a cancellation, so the transaction goes
// on. PostgreSQL has none for statements that change rows; libpq gives the rows of these one at a time, and they end
// early by a cancellation.

extension Wire {
  /// Calls `body` for each row of a query, by a cursor.
  func fetchEach(
    of statement: SQL,
    batch: Int,
    closesWithin limit: Duration,
    _ body: (PostgresRow) throws -> Void
  ) throws {
    let cursor = prepared.newName()
    _ = try run(unprepared: "declare \(identifier: cursor) no scroll cursor for \(statement)", of: statement)
    do {
      let fetch: SQL = "fetch forward \(SQL(unchecked: String(batch))) from \(identifier: cursor)"
      while true {
        let rows = PostgresRows(try run(unprepared: fetch, of: statement))
        for row in rows { try body(row) }
        if rows.count < batch { break }
      }
      try command("close \(cursor)")
    } catch {
      // If the transaction has failed, the cursor has ended.
      if !isBroken, !hasFailed {
        do { try co_shield { try co_timeout(limit) { _ = try command("close \(cursor)") } } } catch { isBroken = true }
      }
      throw error
    }
  }

  /// Calls `body` for each row of any statement, as it comes.
  func streamEach(of statement: SQL, _ body: (PostgresRow) throws -> Void) throws {
    try naming(statement) {
      try statement.checkValues()
      try admit(statement)
      forgetNumber(before: statement)
      try interruptible {
        try beginTransaction()
        try start {
          let isSent = sendUnnamed(statement)
          return isSent == 1 ? PQsetSingleRowMode(pg) : isSent
        }
      }
    }
    do {
      var refused: PostgresError?
      while let next = try naming(statement, nextResult) {
        switch next.status {
        case PGRES_FATAL_ERROR, PGRES_BAD_RESPONSE: if refused == nil { refused = failure(next) }
        case PGRES_COPY_IN, PGRES_COPY_OUT, PGRES_COPY_BOTH:
          try naming(statement) { throw PostgresError(.server, "a copy has no rows: use copyIn or copyOut") }
        default:
          if next.hasRemovedStatements { prepared.removeAll() }
          for row in PostgresRows(next) { try body(row) }
        }
      }
      if let refused { try naming(statement) { throw refused } }
    } catch {
      if !isBroken, isActive { stop() }
      failTransaction()
      throw error
    }
  }

  /// Lets the transaction fail, if it has not.
  ///
  /// The server may have ended a short statement before `body` threw, and then all of its changes would be committed,
  /// although `body` has seen some of them. The same for a copy.
  func failTransaction() {
    if isBroken || isIdle || hasFailed { return }
    do {
      try co_shield {
        try co_timeout(settings.cancelTimeout) { _ = try command("rollback to savepoint co_body_has_thrown") }
      }
    } catch is PostgresError {
      // There is no such savepoint, which is an error.
    } catch { isBroken = true }
    if !hasFailed { isBroken = true }
  }
}

extension SQL {
  /// Whether a cursor can be declared for it: it begins with the word of a query, and changes no rows on the way.
  ///
  /// A word in a text or a comment counts as well. Then the rows come one at a time.
  var mayHaveCursor: Bool {
    switch firstWord {
    case "select", "values", "table": true
    case "with": words.isDisjoint(with: ["insert", "update", "delete", "merge"])
    default: false
    }
  }

  /// Whether it is a copy whose data the client sends or gets.
  var isCopy: Bool {
    // Most statements do not begin with these bytes, so they are not read twice.
    guard let first = utf8.first, Self.copyBegins.contains(first) else { return false }
    return firstWord == "copy" && !words.isDisjoint(with: ["stdin", "stdout"])
  }

  /// A c, a space, and the first byte of a comment and of an empty statement.
  private static let copyBegins: [UInt8] = Array("cC \n\t\r\u{0B}\u{0C}-/;".utf8)

  /// Whether a part of it may have been committed although it has failed: it is not run again.
  var mayCommitInside: Bool { firstWord == "call" || firstWord == "do" }

  /// All words in lower case; a name like `updated_at` is one.
  private var words: Set<Substring> {
    Set(text.lowercased().split { !($0.isLetter || $0.isNumber || $0 == "_" || $0 == "$") })
  }

  /// The first word in lower case, behind spaces, comments and opening parentheses.
  private var firstWord: String {
    var rest = text[...]
    while let next = rest.first {
      if next.isWhitespace || next == "(" || next == ";" {
        rest.removeFirst()
      } else if rest.hasPrefix("--") {
        rest = rest.drop { !$0.isNewline }
      } else if rest.hasPrefix("/*") {
        rest = rest.afterComment
      } else {
        break
      }
    }
    return rest.prefix { $0.isLetter }.lowercased()
  }
}

extension Substring {
  /// What follows the comment at the beginning; comments may contain others.
  fileprivate var afterComment: Substring {
    var (rest, depth) = (self, 0)
    while !rest.isEmpty {
      if rest.hasPrefix("/*") {
        depth += 1
        rest = rest.dropFirst(2)
      } else if rest.hasPrefix("*/") {
        depth -= 1
        rest = rest.dropFirst(2)
        if depth == 0 { break }
      } else {
        rest = rest.dropFirst()
      }
    }
    return rest
  }
}
#endif
