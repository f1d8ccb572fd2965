#if Postgres
internal import CPostgres
import Coroutine

/// COMMIT, sent together with the question for the transaction's number, unless that is known.
///
/// If the connection is lost during COMMIT, the number is the only way to learn the outcome, and it must be known
/// before. Most transactions whose first statement writes have asked then (Wire+Begin.swift). For others both are sent
/// at once, in libpq's pipeline mode, with a request to flush between them: the server sends the number before it
/// begins to commit. That takes no round trip of its own.
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
  /// The name under which the question is being prepared.
  private var question: [CChar]?
  private var error: PostgresError?
  /// The command tag: COMMIT, or ROLLBACK if the transaction has failed before.
  private(set) var tag = ""
  private(set) var id = ID.unknown

  init(_ wire: Wire, asksForID: Bool) {
    self.wire = wire
    if wire.hasFailed {
      // It answers no question, and cannot be committed.
      id = .none
    } else if asksForID, !wire.isIdle, let known = wire.transactionID {
      id = .assigned(known)
    }
    wire.transactionID = nil
    self.asksForID = asksForID && id == .unknown
  }

  /// Sends what was not sent, and reads the answer; throws the server's error.
  func finish() throws {
    if !isSent {
      isSent = true
      guard asksForID ? sendBoth() : PQsendQuery(wire.pg, "commit") == 1 else { throw wire.lost() }
    }
    try wire.flush()
    while !isEnded { try readNext() }
    if asksForID { try wire.endPipeline() }
    if let error { throw error }
  }

  private func sendBoth() -> Bool {
    let pg = wire.pg
    guard PQenterPipelineMode(pg) == 1, let question = wire.sendQuestion() else { return false }
    self.question = question
    return PQsendFlushRequest(pg) == 1 && PQsendQueryParams(pg, "commit", 0, nil, nil, nil, nil, 0) == 1
      && PQpipelineSync(pg) == 1
  }

  private func readNext() throws {
    guard let next = try wire.nextResult() else {
      // In pipeline mode nil ends one statement of several; otherwise it ends all.
      if !asksForID { isEnded = true } else if PQstatus(wire.pg) == CONNECTION_BAD { throw error ?? wire.lost() }
      return
    }
    switch next.status {
    case PGRES_TUPLES_OK: id = next.string(0, 0).map { .assigned($0) } ?? .none
    case PGRES_COMMAND_OK where question != nil: wire.prepared.question = question.take()
    case PGRES_COMMAND_OK: tag = next.tag
    case PGRES_PIPELINE_SYNC: isEnded = true
    case PGRES_FATAL_ERROR:
      var failure = wire.failure(next)
      let isUnanswered = asksForID && id == .unknown
      if isUnanswered { wire.noteRefusedQuestion(&failure) }
      if error == nil { error = failure }
      // The server itself has ended the connection before it has answered the question, and so before it has read
      // COMMIT. Other codes may be a pooler's, which has lost the server and perhaps an answer.
      if isUnanswered, failure.sqlState?.rawValue.hasPrefix("57P") == true { id = .none }
      if wire.isBroken { throw error ?? failure }
    default: break
    }
  }
}
#endif
