#if Postgres
internal import CPostgres
import Coroutine

// A transaction begins together with its first statement: that saves one round trip of each.
//
// Both go in one exchange of libpq's pipeline mode, which ends at its sync. If `begin` fails, the server does not run
// the statement. If the statement fails, the transaction has begun, and has failed, as if each had been sent alone.
// What cannot be in a pipeline, as a copy, or is not prepared yet, is sent after `begin` alone.
//
// If the statement writes, the transaction's number is asked for behind it, in the same exchange: COMMIT then needs no
// question of its own (CommitExchange), and so the server one answer, and this side one wake-up, less. A statement of
// the body may end the transaction, and begin another one. So the number is forgotten before anything is sent that may
// do that, whatever becomes of it; and then COMMIT asks.

extension Wire {
  /// Begins the transaction whose body runs, if that was not done.
  func beginTransaction() throws {
    guard let begin = pendingBegin else { return }
    // What fails now, and has not begun it, sets this again (`interruptible`).
    pendingBegin = nil
    transactionID = nil
    try call { PQsendQuery(pg, begin.text) }
  }

  /// Begins the transaction, and runs a statement that is prepared by this name.
  func run(_ begin: Begin, and statement: SQL, _ name: [CChar]) throws -> ResultMemory {
    try co_checkCancelled()
    if isBroken { throw lost() }
    pendingBegin = nil
    transactionID = nil
    let asks = begin.needsID && statement.mayWrite
    guard PQenterPipelineMode(pg) == 1, PQsendQueryParams(pg, begin.text, 0, nil, nil, nil, nil, 0) == 1,
      sendPrepared(statement, name) == 1, let question = asks ? sendQuestion() : .some(nil), PQpipelineSync(pg) == 1
    else { throw lost() }
    try flush()
    var kept: ResultMemory?
    var error: PostgresError?
    // Of `begin`, the statement, the preparation of the question if it is needed, and the question.
    var step = 0
    while true {
      guard let next = try nextResult() else {
        if PQstatus(pg) == CONNECTION_BAD { throw error ?? lost() }
        step += 1
        continue
      }
      switch next.status {
      case PGRES_PIPELINE_SYNC:
        try endPipeline()
        if let error { throw error }
        guard let kept else { throw lost() }
        return kept
      case PGRES_PIPELINE_ABORTED: break
      case PGRES_FATAL_ERROR, PGRES_BAD_RESPONSE:
        var failure = failure(next)
        if step > 1 { noteRefusedQuestion(&failure) }
        if error == nil { error = failure }
        if isBroken { throw error ?? failure }
      default:
        if step == 1 {
          if next.hasRemovedStatements { prepared.removeAll() }
          kept = next
        } else if step == 2, question != nil {
          prepared.question = question
        } else if step > 1 {
          transactionID = next.string(0, 0)
        }
      }
    }
  }

  // MARK: The number

  /// Sends the question for the transaction's number, in pipeline mode; returns nil if libpq refuses.
  ///
  /// Prepared once on each connection: to parse it each time cost the server a twentieth of a small transaction's time.
  /// If it was not prepared, its new name is returned. The first result is then that of the preparation, and the reader
  /// of that result stores the name. If a cancellation comes before, no name is stored, and the next question has a new
  /// one.
  func sendQuestion() -> [CChar]?? {
    let text = "select pg_current_xact_id_if_assigned()::text"
    if prepared.limit == 0 {
      return PQsendQueryParams(pg, text, 0, nil, nil, nil, nil, 0) == 1 ? .some(nil) : nil
    }
    if let name = prepared.question {
      return PQsendQueryPrepared(pg, name, 0, nil, nil, nil, 0) == 1 ? .some(nil) : nil
    }
    let name = Array(prepared.newName().utf8CString)
    guard PQsendPrepare(pg, name, text, 0, nil) == 1, PQsendQueryPrepared(pg, name, 0, nil, nil, nil, 0) == 1
    else { return nil }
    return name
  }

  /// An error of the question: other code may have removed it, by a statement that does not say so.
  ///
  /// The server has not read COMMIT, if that was sent behind it.
  func noteRefusedQuestion(_ error: inout PostgresError) {
    guard error.sqlState == .noSuchStatement else { return }
    prepared.question = nil
    error.hasNoEffect = true
  }

  /// Called before a statement of the body is sent: forgets the number if the statement may end the transaction.
  func forgetNumber(before statement: SQL) {
    if transactionID != nil, !statement.fitsInPipeline { transactionID = nil }
  }

  /// Runs a command that undoes something, also when cancelled; breaks the connection if it is not confirmed in time.
  func undo(_ text: String, within limit: Duration) {
    if isBroken || isIdle { return }
    do { try co_shield { try co_timeout(limit) { _ = try command(text) } } } catch { isBroken = true }
  }

  /// Leaves libpq's pipeline mode, after its sync.
  ///
  /// Throws as `checkEncoding`.
  func endPipeline() throws {
    PQexitPipelineMode(pg)
    settle()
    try checkEncoding()
  }
}

extension SQL {
  /// Whether its first letter is that of a statement that usually writes.
  ///
  /// A wrong guess costs a question, and no correctness.
  var mayWrite: Bool {
    guard let first = utf8.first(where: { $0 > 32 }) else { return false }
    return "uidmw".utf8.contains(first | 32)
  }

  /// Whether it is no copy, does not end a transaction, and libpq does not refuse it.
  var fitsInPipeline: Bool {
    guard values.count <= UInt16.max, let first = utf8.first(where: { $0 > 32 }) else { return false }
    // Select, insert, update, delete, merge, with, values, and all others that begin so.
    return switch first | 32 {
    case UInt8(ascii: "s"), UInt8(ascii: "i"), UInt8(ascii: "u"), UInt8(ascii: "d"), UInt8(ascii: "m"),
      UInt8(ascii: "w"), UInt8(ascii: "v"):
      true
    default: false
    }
  }
}
#endif
