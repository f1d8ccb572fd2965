#if Postgres
internal import CPostgres
import Coroutine

/// COMMIT, sent together with the question for the transaction's number, unless that is known.
///
/// If the connection is lost during COMMIT, the number is the only way to learn the outcome, and it must be known
/// before. A transaction whose first statement writes has asked then (Wire+Begin.swift). For others both are sent at
/// once, in libpq's pipeline mode, with a request to flush between them: the server sends the number before it begins
/// to commit. That takes no round trip of its own.
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
    if asksForID, let known = wire.transactionID { id = .assigned(known) }
    // A failed transaction answers no question.
    self.asksForID = asksForID && id == .unknown && !wire.hasFailed
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
    isPreparing = wire.prepared.limit > 0 && !wire.prepared.hasQuestion
    return PQenterPipelineMode(pg) == 1 && wire.sendQuestion() && PQsendFlushRequest(pg) == 1
      && PQsendQueryParams(pg, "commit", 0, nil, nil, nil, nil, 0) == 1 && PQpipelineSync(pg) == 1
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
      wire.prepared.hasQuestion = true
    case PGRES_COMMAND_OK: tag = next.tag
    case PGRES_PIPELINE_SYNC: isEnded = true
    case PGRES_FATAL_ERROR:
      var failure = wire.failure(next)
      wire.noteRefusedQuestion(&failure)
      if error == nil { error = failure }
      // The server has ended the connection by its own decision before it has read COMMIT: it answers in order.
      if id == .unknown, failure.sqlState != nil { id = .none }
      if wire.isBroken { throw error ?? failure }
    default: break
    }
  }
}
#endif
