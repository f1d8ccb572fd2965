#if Postgres
internal import CPostgres
import Coroutine

/// Statements of many coroutines on one connection, without a wait for each other's results.
///
///   caller: lock { send the statement and a sync; append to `entries` } --suspends--> resumed by the reader
///   reader: waits for input; lock { read what has come; take the results } --> resumes the callers, outside of the
///   lock
///
/// Invariants, under the lock
///  1. libpq's connection is used under the lock alone, which is never held over a wait. `PQgetResult` is called only
///     while `PQisBusy` is false, so it does not wait.
///  2. `entries` are the statements that were sent and whose sync was not received, in the order of sending. libpq
///     gives results in the same order, and a sync after each entry. So a result belongs to the first entry.
///  3. Each entry has one sync: it is a transaction of its own, and an error ends at its sync.
///  4. After `isBroken` no entry is added; the reader fails all that are there, once.
/// A resumer is used once: its entry is removed from `entries` under the lock first. If the caller was cancelled, the
/// result goes to nobody.
final class PipelineWire: Sendable {
  private struct Entry: Sendable {
    var resumer: Resumer<ResultMemory>
    var statement: String
    /// The statement that is being prepared by this entry.
    var key: StatementCache.Key?
    var result: ResultMemory?
    var error: PostgresError?
  }
  private struct State: Sendable {
    var entries: [Entry] = []
    var isBroken = false
    var isFlushing = false
  }
  private typealias Outcome = (Resumer<ResultMemory>, Result<ResultMemory, any Error>)

  private let wire: Wire
  private let state = ThreadMutex(State())

  init(_ wire: Wire) throws {
    self.wire = wire
    guard PQenterPipelineMode(wire.pg) == 1 else { throw wire.lost() }
  }

  var isBroken: Bool { state.withLock { $0.isBroken } }
  var count: Int { state.withLock { $0.entries.count } }

  /// Sends a statement, and suspends until its result has come; if cancelled, throws at once.
  func run(_ statement: SQL) throws -> ResultMemory {
    for value in statement.values { try JSONFormat.check(value) }
    return try co_suspend { (resumer: Resumer<ResultMemory>) in
      let isFull = try state.withLock { state -> Bool in
        if state.isBroken { throw PostgresError(.lost, "the connection of the pipeline has ended") }
        try send(statement, resumer, &state)
        let isFull = PQflush(wire.pg) == 1 && !state.isFlushing
        if isFull { state.isFlushing = true }
        return isFull
      }
      if isFull { co_launch(name: "PostgresPool.pipeline sends") { self.flush() } }
    }
  }

  private func send(_ statement: SQL, _ resumer: Resumer<ResultMemory>, _ state: inout State) throws {
    var entry = Entry(resumer: resumer, statement: statement.text)
    let isSent: Bool
    if wire.prepared.limit == 0 {
      isSent = wire.sendUnnamed(statement) == 1
    } else {
      let key = StatementCache.Key(text: statement.text, types: statement.values.map(\.type))
      var name = wire.prepared.name(key)
      var isPrepared = true
      if name == nil {
        // The oldest name stays in the server: it would take a statement of its own to remove it.
        _ = wire.prepared.removeOldestIfFull()
        let new = wire.prepared.newName()
        isPrepared = PQsendPrepare(wire.pg, new, key.text, Int32(key.types.count), key.types) == 1
        wire.prepared.insert(key, name: new)
        entry.key = key
        name = new
      }
      isSent =
        isPrepared
        && withParameters(of: statement) { count, _, values, lengths, formats in
          PQsendQueryPrepared(wire.pg, name, count, values, lengths, formats, 1)
        } == 1
    }
    guard isSent, PQpipelineSync(wire.pg) == 1 else {
      // Half a statement may be in libpq's memory.
      state.isBroken = true
      wire.shutDown()
      throw PostgresError(.lost, Server.line(String(cString: PQerrorMessage(wire.pg))))
    }
    state.entries.append(entry)
  }

  private func flush() {
    while true {
      do { try wire.untilWritable() } catch { wire.shutDown() }
      let isDone = state.withLock { state in
        let isDone = state.isBroken || PQflush(wire.pg) != 1
        if isDone { state.isFlushing = false }
        return isDone
      }
      if isDone { return }
    }
  }

  /// Reads results until the connection ends, or the coroutine is cancelled; then all callers get `.lost`.
  func read() {
    var reason = "the pool was closed"
    do {
      while true {
        let (outcomes, loss) = state.withLock { takeResults(&$0) }
        for (resumer, result) in outcomes { resumer.resume(with: result) }
        if let loss {
          reason = loss
          break
        }
        try wire.untilReadable()
      }
    } catch {}
    let left = state.withLock { state in
      state.isBroken = true
      defer { state.entries = [] }
      return state.entries
    }
    wire.shutDown()
    for entry in left {
      var error = PostgresError(.lost, reason)
      error.statement = entry.statement
      entry.resumer.fail(error)
    }
  }

  /// Takes what has come; a text if the connection has ended.
  private func takeResults(_ state: inout State) -> ([Outcome], String?) {
    var outcomes: [Outcome] = []
    let isOpen = PQconsumeInput(wire.pg) == 1
    while !state.entries.isEmpty, PQisBusy(wire.pg) == 0 {
      guard let result = PQgetResult(wire.pg).map({ ResultMemory($0) }) else {
        // The end of one statement; nothing more will come from a lost connection.
        if PQstatus(wire.pg) == CONNECTION_BAD { break }
        continue
      }
      switch result.status {
      case PGRES_PIPELINE_SYNC: outcomes.append(finishFirst(&state))
      case PGRES_PIPELINE_ABORTED: break
      case PGRES_FATAL_ERROR:
        var error = wire.failure(result)
        error.statement = state.entries[0].statement
        if state.entries[0].error == nil { state.entries[0].error = error }
        if wire.isBroken { return (outcomes + [finishFirst(&state)], error.message) }
      case PGRES_COPY_IN, PGRES_COPY_OUT, PGRES_COPY_BOTH: return (outcomes, "a copy was run in a pipeline")
      default: state.entries[0].result = result
      }
    }
    if state.entries.isEmpty { wire.settle() }
    if state.isBroken || !isOpen { return (outcomes, Server.line(String(cString: PQerrorMessage(wire.pg)))) }
    return (outcomes, nil)
  }

  private func finishFirst(_ state: inout State) -> Outcome {
    let entry = state.entries.removeFirst()
    if let error = entry.error {
      // The preparation may have failed, or the plan is outdated: the next use prepares it anew.
      if let key = entry.key { wire.prepared.remove(key) }
      if error.isOutdated { wire.prepared.removeAll() }
      return (entry.resumer, .failure(error))
    }
    guard let result = entry.result else {
      return (entry.resumer, .failure(PostgresError(.lost, "the server has sent no result")))
    }
    return (entry.resumer, .success(result))
  }
}
#endif
