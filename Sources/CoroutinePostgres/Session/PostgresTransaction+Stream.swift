#if Postgres
internal import CPostgres
import Coroutine

extension PostgresTransaction {
  /// Calls `body` for each row as the server sends them, `batch` at a time, in constant memory.
  ///
  /// Asks the server.
  ///
  /// Suspends for each batch. An error, or a `body` that throws, ends the statement at once; then a statement that
  /// is no query has failed, and with it the transaction. `body` may suspend: the server then waits, for as long as it
  /// takes, because `idleInTransactionTimeout` does not count meanwhile. Inside of `body`, other statements of the
  /// transaction throw `.busy`. Rows of a statement that changes some come one at a time, whatever `batch` says.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func forEach(_ statement: SQL, batch: Int = 500, _ body: (PostgresRow) throws -> Void) throws {
    if memory != nil {
      for row in try run(statement) { try body(row) }
      return
    }
    try use { wire in
      try wire.withoutIdleLimit {
        if statement.mayHaveCursor {
          let batch = min(max(1, batch), Int(Int32.max))
          try wire.fetchEach(of: statement, batch: batch, closesWithin: cancelTimeout, body)
        } else {
          try wire.streamEach(of: statement, body)
        }
      }
    }
  }

  /// Runs `copy … from stdin`: sends what `write` gets, and returns the number of rows.
  ///
  /// Asks the server.
  ///
  /// Suspends the writer while the server is slow. A row that the server refuses is told at the end of `body`, since
  /// libpq reads no answer before: copy large data in parts. If the body throws or is cancelled, nothing is copied, and
  /// the transaction has failed. A statement that is no copy with `stdin` or `stdout` throws `.server`, and is not
  /// sent; one in the other direction throws it too, and the transaction has failed.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func copyIn(
    _ statement: SQL,
    _ body: (_ write: ([UInt8]) throws -> Void) throws -> Void
  ) throws -> Int {
    try statement.checkCopy()
    return try use { wire in
      try wire.beginCopy(statement, PGRES_COPY_IN)
      var unsent = 0
      do {
        try body { bytes in
          try wire.putCopyData(bytes)
          unsent += bytes.count
          // Small pieces go together, and no more than this is kept for a slow server.
          guard unsent >= 1 << 16 else { return }
          try wire.flush()
          unsent = 0
        }
      } catch {
        wire.failCopy()
        throw error
      }
      return try wire.interruptible {
        guard PQputCopyEnd(wire.pg, nil) == 1 else { throw wire.lost() }
        try wire.flush()
        return try wire.naming(statement) { try wire.result().affected }
      }
    }
  }

  /// Runs `copy … to stdout`, and calls `body` with each piece.
  ///
  /// Asks the server.
  ///
  /// Suspends for each piece that has not arrived. A slow `body` delays the server. If it throws, the copy ends, and
  /// the transaction has failed. Other statements are refused as by ``copyIn(_:_:)``.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func copyOut(_ statement: SQL, _ body: ([UInt8]) throws -> Void) throws {
    try statement.checkCopy()
    try use { wire in
      try wire.withoutIdleLimit {
        try wire.beginCopy(statement, PGRES_COPY_OUT)
        do {
          while let bytes = try wire.nextCopyData() { try body(bytes) }
          _ = try wire.naming(statement) { try wire.result() }
        } catch {
          if !wire.isBroken, wire.isActive { wire.stop() }
          wire.failTransaction()
          throw error
        }
      }
    }
  }
}

extension SQL {
  /// Throws unless it is a copy whose data the client sends or gets: another statement would run before its answer
  /// shows that it is none, and its effects would be committed if the error is swallowed.
  fileprivate func checkCopy() throws {
    do {
      // What no route sends has its own error.
      _ = try changesSession()
    } catch var error as PostgresError {
      error.statement = text
      throw error
    }
    if isCopy { return }
    let rule = "copyIn and copyOut run copy … from stdin and copy … to stdout; run(_:) is for other statements"
    throw PostgresError(.server, rule, statement: text)
  }
}

extension Wire {
  /// Runs `body`, whose consumer may be slow, while the server does not end a transaction that waits.
  ///
  /// The limit is for a transaction that was forgotten, and counts between two batches, and after the server has sent
  /// all, as well. One that was set by others is theirs.
  func withoutIdleLimit<R>(_ body: () throws -> R) throws -> R {
    guard let limit = settings.idleInTransactionTimeout, !settings.isPooledByTransaction, !hasFailed else {
      return try body()
    }
    let name = "idle_in_transaction_session_timeout"
    try command("set local \(name) = 0")
    let value: R
    do { value = try body() } catch {
      // A failed transaction ends soon, and the setting with it.
      if !hasFailed { undo("set local \(name) = \(limit.inMilliseconds)", within: settings.cancelTimeout) }
      throw error
    }
    try command("set local \(name) = \(limit.inMilliseconds)")
    return value
  }

  /// Runs a statement that is made for one use.
  ///
  /// An error names the statement of the caller.
  func run(unprepared statement: SQL, of original: SQL) throws -> ResultMemory {
    try naming(original) {
      try statement.checkValues()
      try admit(statement)
      forgetNumber(before: statement)
      return try interruptible {
        try beginTransaction()
        return try call { sendUnnamed(statement) }
      }
    }
  }

  func naming<R>(_ statement: SQL, _ body: () throws -> R) throws -> R {
    do { return try body() } catch var error as PostgresError {
      error.statement = statement.text
      throw error
    }
  }

  /// Begins a copy in the direction that `status` names.
  func beginCopy(_ statement: SQL, _ status: ExecStatusType) throws {
    try naming(statement) {
      try statement.checkValues()
      try admit(statement)
      forgetNumber(before: statement)
      try interruptible {
        try beginTransaction()
        try start { sendUnnamed(statement, isText: true) }
        guard let first = try nextResult() else { throw lost() }
        if first.status == status { return }
        let isCopy = first.status == PGRES_COPY_IN || first.status == PGRES_COPY_OUT
        let error = first.status == PGRES_FATAL_ERROR ? failure(first) : nil
        if isCopy { stop() } else { while try nextResult() != nil {} }
        // It may have run: `copy (delete …) to stdout`, and a copy of the server's own, whose file is called stdin.
        failTransaction()
        throw error ?? PostgresError(.server, "this is no copy in that direction")
      }
    }
  }

  /// Gives bytes to libpq, which sends what the socket takes.
  ///
  /// Suspends if its memory is full.
  func putCopyData(_ bytes: [UInt8]) throws {
    try bytes.withUnsafeBytes { bytes in
      for piece in Self.pieces(of: bytes.count) {
        let start = bytes.baseAddress?.advanced(by: piece.lowerBound).assumingMemoryBound(to: CChar.self)
        while true {
          let code = PQputCopyData(pg, start, Int32(piece.count))
          if code == 1 { break }
          if code < 0 { throw lost() }
          try flush()
        }
        // The next one waits until the socket has room, so no more than a piece is kept twice.
        if piece.upperBound < bytes.count { try flush() }
      }
    }
  }

  /// The parts in which so many bytes are given to libpq, whose lengths have 32 bits.
  static func pieces(of count: Int) -> some Sequence<Range<Int>> {
    let most = 1 << 20
    return stride(from: 0, to: count, by: most).lazy.map { $0..<min($0 + most, count) }
  }

  /// Tells the server that the data is incomplete, and waits for its answer.
  func failCopy() {
    if isBroken { return }
    do {
      try co_shield {
        try co_timeout(settings.cancelTimeout) {
          guard PQputCopyEnd(pg, "the body of the copy has failed") == 1 else { throw lost() }
          try flush()
          while let next = try nextResult() { if next.status == PGRES_FATAL_ERROR { _ = failure(next) } }
        }
      }
    } catch { isBroken = true }
  }
}
#endif
