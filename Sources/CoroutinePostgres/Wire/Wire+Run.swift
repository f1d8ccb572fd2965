#if Postgres
internal import CPostgres
import Coroutine

extension Wire {
  /// Runs one statement, prepared by name where the settings say so, and returns its result.
  ///
  /// Asks the server: suspends, cancellation, loss and errors are as PostgresSession says.
  func run(_ statement: SQL) throws -> ResultMemory {
    let begin = pendingBegin
    do {
      try statement.checkValues()
      forgetNumber(before: statement)
      return try prepared.limit == 0 ? runUnnamed(statement) : runAgainIfOutdated(statement)
    } catch {
      // As `interruptible` does, whose closure would count a reference to each part of the statement.
      endInterrupted(error, begin)
      guard var refused = error as? PostgresError else { throw error }
      refused.statement = statement.text
      throw refused
    }
  }

  private func runUnnamed(_ statement: SQL) throws -> ResultMemory {
    try beginTransaction()
    return try call { sendUnnamed(statement) }
  }

  private func runAgainIfOutdated(_ statement: SQL) throws -> ResultMemory {
    do { return try runPrepared(statement) } catch let error as PostgresError where error.isOutdated {
      // The table has changed since, or somebody has removed the statement. Nothing has run.
      let isGone = error.sqlState == .noSuchStatement
      let name = prepared.remove(StatementCache.Key(statement))
      if let name, isIdle, !isGone { try call { PQsendQuery(pg, "deallocate \(name)") } }
      // In a transaction nothing more can run; the next one prepares it again.
      guard isIdle else { throw error }
      return try runPrepared(statement)
    }
  }

  /// Runs text of this product without parameters, in the simple protocol: begin, commit, set.
  @discardableResult
  func command(_ text: String) throws -> ResultMemory {
    transactionID = nil
    return try interruptible {
      try beginTransaction()
      return try call { PQsendQuery(pg, text) }
    }
  }

  private func runPrepared(_ statement: SQL) throws -> ResultMemory {
    if let begin = pendingBegin, statement.fitsInPipeline, let name = prepared.name(of: statement) {
      return try run(begin, and: statement, name)
    }
    try beginTransaction()
    let name = try prepare(statement)
    // As `call` does, which would count a reference to each part of the statement for its closure.
    try checkUse()
    try check(sendPrepared(statement, name))
    return try result()
  }

  func sendPrepared(_ statement: SQL, _ name: [CChar]) -> Int32 {
    let pg = pg
    return name.withUnsafeBufferPointer { name in
      let name = name.baseAddress
      return withParameters(of: statement) { count, _, values, lengths, formats in
        PQsendQueryPrepared(pg, name, count, values, lengths, formats, 1)
      }
    }
  }

  private func prepare(_ statement: SQL) throws -> [CChar] {
    if let name = prepared.name(of: statement) { return name }
    let key = StatementCache.Key(statement)
    // In a failed transaction this fails as well, and the statement stays in the server without a use.
    if let oldest = prepared.removeOldestIfFull() { try call { PQsendQuery(pg, "deallocate \(oldest)") } }
    let name = prepared.newName()
    try call { PQsendPrepare(pg, name, key.text, Int32(key.types.count), key.types) }
    return prepared.insert(key, name: name)
  }

  /// Sends a statement that the server forgets after it; the result is binary, or text.
  func sendUnnamed(_ statement: SQL, isText: Bool = false) -> Int32 {
    withParameters(of: statement) { count, types, values, lengths, formats in
      PQsendQueryParams(pg, statement.text, count, types, values, lengths, formats, isText ? 0 : 1)
    }
  }

  /// Runs `body`; if it is cancelled in the middle of a statement, ends the statement first.
  ///
  /// If the transaction has not begun nevertheless, its next statement begins it: a body that goes on after the error
  /// must not run its statements outside of its transaction.
  func interruptible<R>(_ body: () throws -> R) throws -> R {
    let begin = pendingBegin
    do { return try body() } catch {
      endInterrupted(error, begin)
      throw error
    }
  }

  private func endInterrupted(_ error: any Error, _ begin: Begin?) {
    if !(error is PostgresError), !isBroken, isActive { stop() }
    if let begin, !isBroken, isIdle { pendingBegin = begin }
  }

  // MARK: One exchange

  /// Sends, and returns the result; throws the server's error.
  ///
  /// `send` is a function of libpq.
  @discardableResult
  func call(_ send: () -> Int32) throws -> ResultMemory {
    try start(send)
    return try result()
  }

  /// Sends all of it.
  func start(_ send: () -> Int32) throws {
    try checkUse()
    try check(send())
  }

  /// Called before anything is sent, so that a cancelled coroutine, or code outside of one, has changed nothing.
  private func checkUse() throws {
    try co_checkCancelled()
    if isBroken { throw lost() }
  }

  /// Sends all that libpq has taken; `status` is the answer of its function.
  private func check(_ status: Int32) throws {
    guard status == 1 else {
      // libpq itself has refused it, or there is no connection any more.
      if PQstatus(pg) != CONNECTION_OK { throw lost() }
      throw PostgresError(.decoding, Server.line(String(cString: PQerrorMessage(pg))))
    }
    try flush()
  }

  func flush() throws {
    while true {
      switch PQflush(pg) {
      case 0: return
      case 1: try untilWritable()
      // What the server has said before it left is still to be read.
      default: return
      }
      if PQconsumeInput(pg) == 0 { return }
    }
  }

  /// All results of the statement; of several, the first error, or else the last one.
  func result() throws -> ResultMemory {
    var kept: ResultMemory?
    var error: PostgresError?
    while let next = try nextResult() {
      switch next.status {
      case PGRES_COPY_IN, PGRES_COPY_OUT, PGRES_COPY_BOTH:
        try endStrayCopy(next.status)
        if error == nil { error = PostgresError(.server, "run has no data for a copy: use copyIn or copyOut") }
      case PGRES_FATAL_ERROR, PGRES_BAD_RESPONSE:
        // What follows the first error is the loss of the connection.
        if error == nil || next.status == PGRES_BAD_RESPONSE { error = failure(next) } else { _ = failure(next) }
      default:
        if next.hasRemovedStatements { prepared.removeAll() }
        kept = next
      }
    }
    if let error { throw error }
    guard let kept else { throw lost() }
    return kept
  }

  /// The next result of the statement; nil after the last one.
  func nextResult() throws -> ResultMemory? {
    while PQisBusy(pg) == 1 {
      try untilReadable()
      // After a loss, PQgetResult returns what the server has said last.
      if PQconsumeInput(pg) == 0 { break }
    }
    if let result = PQgetResult(pg) { return ResultMemory(result) }
    // In pipeline mode it ends one statement of several.
    if PQpipelineStatus(pg) == PQ_PIPELINE_OFF { settle() }
    return nil
  }

  private func endStrayCopy(_ status: ExecStatusType) throws {
    if status == PGRES_COPY_IN {
      PQputCopyEnd(pg, "run has no data for a copy")
      return try flush()
    }
    while try nextCopyData() != nil {}
  }

  /// The next piece of `copy … to stdout`; nil at the end.
  func nextCopyData() throws -> [UInt8]? {
    while true {
      var data: UnsafeMutablePointer<CChar>?
      let count = Int(PQgetCopyData(pg, &data, 1))
      if count > 0 {
        defer { PQfreemem(data) }
        return Array(UnsafeRawBufferPointer(start: data, count: count))
      }
      if count < 0 { return nil }  // the result says whether it was all
      try untilReadable()
      if PQconsumeInput(pg) == 0 { throw lost() }
    }
  }
}

extension PostgresError {
  /// Whether a prepared statement has to be prepared again.
  ///
  /// The code of an outdated plan has other meanings as well.
  var isOutdated: Bool {
    sqlState == .noSuchStatement || (sqlState == .outdatedPlan && routine == "RevalidateCachedQuery")
  }
}
#endif
