#if Postgres
internal import CPostgres
import Coroutine

/// COMMIT, sent together with the question for the transaction's number.
///
/// If the connection is lost during COMMIT, the number is the only way to learn the outcome, and it must be known
/// before. So both are sent at once, in libpq's pipeline mode, with a request to flush between them: the server sends
/// the number before it begins to commit. That takes no round trip of its own.
///
/// The question is prepared once on each connection: parsing it for each COMMIT cost the server a twentieth of a small
/// transaction's time.
///
/// Every step may be cancelled and done again: `finish` goes on where the last call has stopped.
final class CommitExchange {
  enum ID: Equatable {
    case unknown, none
    case assigned(String)
  }

  private let wire: Wire
  private let asksForID: Bool
  private var isSent = false
  private var isEnded = false
  private var isPreparing = false
  private var error: PostgresError?
  /// The command tag: COMMIT, or ROLLBACK if the transaction has failed before.
  private(set) var tag = ""
  private(set) var id = ID.unknown

  init(_ wire: Wire, asksForID: Bool) {
    self.wire = wire
    // A failed transaction answers no question.
    self.asksForID = asksForID && !wire.hasFailed
  }

  /// Sends what was not sent, and reads the answer; throws the server's error.
  func finish() throws {
    if !isSent {
      isSent = true
      guard asksForID ? sendBoth() : PQsendQuery(wire.pg, "commit") == 1 else { throw wire.lost() }
    }
    try wire.flush()
    while !isEnded { try readNext() }
    if asksForID { wire.endPipeline() }
    if let error { throw error }
  }

  private func sendBoth() -> Bool {
    let pg = wire.pg
    func send(_ text: String) -> Bool { PQsendQueryParams(pg, text, 0, nil, nil, nil, nil, 0) == 1 }
    return PQenterPipelineMode(pg) == 1 && sendQuestion(send) && PQsendFlushRequest(pg) == 1 && send("commit")
      && PQpipelineSync(pg) == 1
  }

  private func sendQuestion(_ send: (String) -> Bool) -> Bool {
    let (pg, text, name) = (wire.pg, "select pg_current_xact_id_if_assigned()::text", "co_transaction")
    if wire.prepared.limit == 0 { return send(text) }
    if !wire.prepared.hasCommitQuestion {
      guard PQsendPrepare(pg, name, text, 0, nil) == 1 else { return false }
      isPreparing = true
    }
    return PQsendQueryPrepared(pg, name, 0, nil, nil, nil, 0) == 1
  }

  private func readNext() throws {
    guard let next = try wire.nextResult() else {
      // In pipeline mode nil ends one statement of several; otherwise it ends all.
      if !asksForID { isEnded = true } else if PQstatus(wire.pg) == CONNECTION_BAD { throw error ?? wire.lost() }
      return
    }
    switch next.status {
    case PGRES_TUPLES_OK: id = next.string(0, 0).map { .assigned($0) } ?? .none
    case PGRES_COMMAND_OK where isPreparing:
      isPreparing = false
      wire.prepared.hasCommitQuestion = true
    case PGRES_COMMAND_OK: tag = next.tag
    case PGRES_PIPELINE_SYNC: isEnded = true
    case PGRES_FATAL_ERROR:
      var failure = wire.failure(next)
      if failure.sqlState == .noSuchStatement {
        // Other code has removed the question, by a statement that does not say so. COMMIT was not read.
        wire.prepared.hasCommitQuestion = false
        failure.hasNoEffect = true
      }
      if error == nil { error = failure }
      // The server has ended the connection by its own decision before it has read COMMIT: it answers in order.
      if id == .unknown, failure.sqlState != nil { id = .none }
      if wire.isBroken { throw error ?? failure }
    default: break
    }
  }
}
#endif
