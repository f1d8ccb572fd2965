#if Postgres
internal import CPostgres
import Coroutine
import Glibc

extension PipelineWire {
  /// Sends statements together, where libpq can; called by the holder of the permit.
  func send(_ batch: [Entry]) {
    for (index, entry) in batch.enumerated() where !put(entry) {
      // Half a statement may be in libpq's memory.
      let reason = Server.line(String(cString: PQerrorMessage(wire.pg)))
      let left = breakOff()
      // The reader finds the end, and fails those that were sent.
      wire.shutDown()
      for entry in batch[index...] + left { fail(entry, reason) }
      return
    }
    if PQflush(wire.pg) == 1, !isFlushing {
      isFlushing = true
      co_launch(name: "PostgresPool.pipeline sends") { self.flush() }
    }
    takeReadAhead()
  }

  func fail(_ entry: Entry, _ reason: String) {
    finish(entry.resumer, .failure(PostgresError(.lost, reason, statement: entry.statement.text)))
  }

  /// Puts a statement and its sync into libpq's memory; false if libpq has refused.
  ///
  /// One that must not be sent here is not put: its caller gets the error.
  private func put(_ entry: Entry) -> Bool {
    let statement = entry.statement
    var name = wire.prepared.name(of: statement)
    if name == nil {
      do { if try statement.changesSession() { throw NeedsConnection() } } catch {
        finish(entry.resumer, .failure(error))
        return true
      }
    }
    let isPut: Bool
    if wire.prepared.limit == 0 {
      isPut = wire.sendUnnamed(statement) == 1
    } else {
      var isPrepared = true
      if name == nil {
        wire.prepared.removeOldestIfFull()
        guard forgetUnused() else { return false }
        let (key, new) = (StatementCache.Key(statement), wire.prepared.newName())
        isPrepared = PQsendPrepare(wire.pg, new, key.text, Int32(key.types.count), key.types) == 1
        name = wire.prepared.insert(key, name: new)
        entry.key = key
      }
      entry.name = name
      isPut = isPrepared && wire.sendPrepared(statement, name!) == 1
    }
    guard isPut, PipelineSync.put(wire.pg) == 1 else { return false }
    sent.append(entry)
    return true
  }

  /// Puts the removal of names into libpq's memory, each with a sync of its own: it is nobody's error if one is gone.
  private func forgetUnused() -> Bool {
    while let name = wire.prepared.unused.popLast() {
      let entry = Entry(nil, SQL(unchecked: "deallocate \(name)"))
      guard wire.sendUnnamed(entry.statement) == 1, PipelineSync.put(wire.pg) == 1 else { return false }
      sent.append(entry)
    }
    return true
  }

  /// Sends what the socket had no room for.
  private func flush() {
    while true {
      do {
        try wire.untilWritable()
        guard try acquire() else { return }
      } catch {
        // The reader finds the end.
        return wire.shutDown()
      }
      let isDone = PQflush(wire.pg) != 1
      isFlushing = !isDone
      takeReadAhead()
      sendAll()
      if isDone { return }
    }
  }
}

/// A statement that changes the session, which in a pipeline is that of all callers.
struct NeedsConnection: Error {}

/// The end of one statement of a pipeline.
private enum PipelineSync {
  private typealias Function = @convention(c) (OpaquePointer?) -> Int32

  /// libpq 17 has a function that does not send.
  ///
  /// Looked up, because the header may be older than the library.
  private static let quiet = dlsym(nil, "PQsendPipelineSync").map { unsafeBitCast($0, to: Function.self) }

  static func put(_ pg: OpaquePointer) -> Int32 { quiet?(pg) ?? PQpipelineSync(pg) }
}
#endif
