#if Postgres
internal import CPostgres
import Coroutine

extension PipelineWire {
  /// Reads results until the connection ends, or the coroutine is cancelled; then all callers get `.lost`.
  func read() {
    var reason = "the pool was closed"
    var isHolder = false
    do {
      while true {
        try wire.untilReadable()
        guard try acquire() else { return }
        isHolder = true
        let (resumed, loss) = takeResults()
        if let loss {
          reason = loss
          break
        }
        if retireIfNeeded() {
          reason = "the connection was replaced"
          break
        }
        // Those that have got a result send their next statements in one batch.
        if resumed > 0 { try co_yield() }
        sendAll()
        isHolder = false
      }
    } catch {}
    let left = breakOff()
    wire.shutDown()
    if !isHolder { _ = try? acquire() }
    for entry in left { fail(entry, reason) }
    while let entry = sent.popFirst() {
      finish(entry.resumer, .failure(PostgresError(.lost, reason, statement: entry.statement.text)))
    }
    endPermit()
  }

  /// Takes what has come, and resumes those that it is for; returns how many, and a text if the connection has ended.
  private func takeResults() -> (Int, String?) {
    let isOpen = PQconsumeInput(wire.pg) == 1
    let (resumed, loss) = takeRead()
    if let loss { return (resumed, loss) }
    if sent.isEmpty { wire.settle() }
    return (resumed, isOpen && (isRetired || !isBroken) ? nil : Server.line(String(cString: PQerrorMessage(wire.pg))))
  }

  /// Takes results that libpq has read while it was to send; called by the holder of the permit, after it has sent.
  ///
  /// Where the socket has no room, libpq reads, so that the server goes on. The reader is not woken by what is read
  /// already: without this the results would wait for the next input, for as long as the next statement takes.
  func takeReadAhead() {
    // The reader finds the end, and fails the others.
    if !sent.isEmpty, PQisBusy(wire.pg) == 0, takeRead().loss != nil { return wire.shutDown() }
    // A retired connection that has no statement any more ends in the same way, also if none was sent.
    if mayEnd { wire.shutDown() }
  }

  /// Takes what libpq has read.
  private func takeRead() -> (resumed: Int, loss: String?) {
    var resumed = 0
    while !sent.isEmpty, PQisBusy(wire.pg) == 0 {
      guard let result = PQgetResult(wire.pg).map({ ResultMemory($0, isUTC: wire.isUTC) }) else {
        // The end of one statement; nothing more will come from a lost connection.
        if PQstatus(wire.pg) == CONNECTION_BAD { break }
        continue
      }
      switch result.status {
      case PGRES_PIPELINE_SYNC:
        do { try wire.checkEncoding() } catch { return (resumed, "\(error)") }
        finishFirst()
        resumed += 1
      case PGRES_PIPELINE_ABORTED: break
      case PGRES_FATAL_ERROR, PGRES_BAD_RESPONSE:
        var error = wire.failure(result)
        error.statement = sent.first.statement.text
        if sent.first.error == nil { sent.first.error = error }
        if wire.isBroken {
          finishFirst()
          return (resumed, error.message)
        }
      case PGRES_COPY_IN, PGRES_COPY_OUT, PGRES_COPY_BOTH: return (resumed, "a copy was run in a pipeline")
      default:
        if result.hasRemovedStatements { wire.prepared.removeAll() }
        sent.first.result = result
      }
    }
    return (resumed, nil)
  }

  private func finishFirst() {
    guard let entry = sent.popFirst() else { return }
    if let error = entry.error {
      // A preparation that has failed has no result; the next use prepares the statement anew. One that was successful
      // is kept: a statement that always fails would leave one more in the server each time.
      if let key = entry.key, entry.result == nil {
        wire.prepared.remove(key)
      } else if error.isOutdated, let name = entry.name {
        // Of several that were sent with the old name, the first one: the others must not remove the new name.
        let isGone = error.sqlState == .noSuchStatement
        let old = wire.prepared.remove(.init(entry.statement), name: name)
        if let old, !isGone { wire.prepared.unused.append(old) }
      }
      finish(entry.resumer, .failure(error))
    } else if let result = entry.result {
      finish(entry.resumer, .success(result))
    } else {
      finish(entry.resumer, .failure(PostgresError(.lost, "the server has sent no result")))
    }
  }
}

/// A queue in one array: the entries before `head` were taken.
struct FirstInFirstOut<Element> {
  private var elements: [Element?] = []
  private var head = 0

  var isEmpty: Bool { head == elements.count }
  /// The first one, of a queue that has one.
  var first: Element {
    get { elements[head]! }
    set { elements[head] = newValue }
  }

  mutating func append(_ element: Element) { elements.append(element) }

  mutating func popFirst() -> Element? {
    guard head < elements.count else { return nil }
    defer {
      head += 1
      if head == elements.count {
        elements.removeAll(keepingCapacity: true)
        head = 0
      } else if head >= 64, head * 2 > elements.count {
        elements.removeFirst(head)
        head = 0
      }
    }
    return elements[head].take()
  }
}
#endif
