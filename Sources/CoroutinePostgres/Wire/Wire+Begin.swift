#if Postgres
internal import CPostgres
import Coroutine

// A transaction begins together with its first statement: that saves one round trip of each.
//
// Both go in one exchange of libpq's pipeline mode, which ends at its sync. If `begin` fails, the server does not run
// the statement. If the statement fails, the transaction has begun, and has failed, as if each had been sent alone.
// What cannot be in a pipeline, as a copy, or is not prepared yet, is sent after `begin` alone.

extension Wire {
  /// Begins the transaction whose body runs, if that was not done.
  func beginTransaction() throws {
    guard let text = pendingBegin else { return }
    // What fails now, and has not begun it, sets this again (`interruptible`).
    pendingBegin = nil
    try call { PQsendQuery(pg, text) }
  }

  /// Begins the transaction, and runs a statement that is prepared by this name.
  func run(_ begin: String, and statement: SQL, _ name: [CChar]) throws -> ResultMemory {
    try co_checkCancelled()
    if isBroken { throw lost() }
    pendingBegin = nil
    guard PQenterPipelineMode(pg) == 1, PQsendQueryParams(pg, begin, 0, nil, nil, nil, nil, 0) == 1,
      sendPrepared(statement, name) == 1, PQpipelineSync(pg) == 1
    else { throw lost() }
    try flush()
    var kept: ResultMemory?
    var error: PostgresError?
    while true {
      guard let next = try nextResult() else {
        // The end of one of the two.
        if PQstatus(pg) == CONNECTION_BAD { throw error ?? lost() }
        continue
      }
      switch next.status {
      case PGRES_PIPELINE_SYNC:
        endPipeline()
        if let error { throw error }
        guard let kept else { throw lost() }
        return kept
      case PGRES_PIPELINE_ABORTED: break
      case PGRES_FATAL_ERROR, PGRES_BAD_RESPONSE:
        let failure = failure(next)
        if error == nil { error = failure }
        if isBroken { throw error ?? failure }
      default:
        if next.hasRemovedStatements { prepared.removeAll() }
        kept = next
      }
    }
  }

  /// Runs a command that undoes something, also when cancelled; breaks the connection if it is not confirmed in time.
  func undo(_ text: String, within limit: Duration) {
    if isBroken || isIdle { return }
    do { try co_shield { try co_timeout(limit) { _ = try command(text) } } } catch { isBroken = true }
  }

  /// Leaves libpq's pipeline mode, after its sync.
  func endPipeline() {
    PQexitPipelineMode(pg)
    settle()
  }
}

extension SQL {
  /// Whether it is no copy, and libpq does not refuse it.
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
