#if Postgres
import Coroutine
import CoroutinePostgres
import FoundationEssentials

#if canImport(Glibc)
import Glibc
#endif

/// A worker's link to the server: repeats what losses and outages have stopped, and tells about them.
final class Link: Sendable {
  private let core: QueueCore
  private let onEvent: @Sendable (WorkEvent) -> Void
  private let isDown = ThreadMutex(false)

  init(_ core: QueueCore, onEvent: @escaping @Sendable (WorkEvent) -> Void) {
    self.core = core
    self.onEvent = onEvent
  }

  /// Runs `body`, each time for at most `limit`, from 50 ms up to 5 s after the last error, until it returns.
  ///
  /// Asks the server. Throws the cancellation error, what `checkLasting` throws, and errors for which `isOver` is true.
  func persist<R>(
    limit: Duration = .seconds(10),
    unless isOver: (PostgresError) -> Bool = { _ in false },
    _ body: () throws -> R
  ) throws -> R {
    var pause = Self.firstPause
    while true {
      if let result = try attempt(limit, isOver, body) { return result }
      try co_delay(pause)
      pause = Self.next(pause)
    }
  }

  /// Does the same until the coroutine is asked to stop, and returns nil then.
  func persistUntilStop<R>(
    limit: Duration = .seconds(10),
    unless isOver: (PostgresError) -> Bool = { _ in false },
    _ body: () throws -> R
  ) throws -> R? {
    let stopping = co_stopping
    var pause = Self.firstPause
    while !co_isStopping {
      if let result = try attempt(limit, isOver, body) { return result }
      try co_select {
        stopping.onAwait { _ in }
        SelectCase.onTimeout(pause) {}
      }
      pause = Self.next(pause)
    }
    return nil
  }

  private static var firstPause: Duration { .milliseconds(50) }
  private static func next(_ pause: Duration) -> Duration { min(pause * 2, .seconds(5)) }

  /// Runs `body` once; returns nil if it may succeed later.
  private func attempt<R>(_ limit: Duration, _ isOver: (PostgresError) -> Bool, _ body: () throws -> R) throws -> R? {
    do {
      let result = try co_timeout(limit, body)
      tell(nil)
      return result
    } catch {
      // Before all else: a deadline of the caller's looks like one of ours.
      try co_checkCancelled()
      // First, because it throws a better error for tables that are missing.
      try Self.checkLasting(error, core.db, schema: core.schema)
      if let refused = error as? PostgresError, isOver(refused) { throw refused }
      tell(error)
      return nil
    }
  }

  /// Whether the last answer was an error.
  var isOut: Bool { isDown.withLock { $0 } }

  /// Tells the first error of an outage, and its end.
  func tell(_ error: (any Error)?) {
    if let refused = error as? PostgresError, Self.passes(refused) { return }
    let hasChanged = isDown.withLock { isDown in
      defer { isDown = error != nil }
      return isDown != (error != nil)
    }
    guard hasChanged else { return }
    guard let error else { return onEvent(.reconnected) }
    onEvent(.disconnected(error as? PostgresError ?? PostgresError(.lost, "no answer in time: \(error)")))
  }

  /// Two claims that have met, a row that is locked, and the like: no outage.
  private static func passes(_ error: PostgresError) -> Bool {
    error.kind == .server
      && [.uniqueViolation, .serializationFailure, .deadlock, .lockNotAvailable].contains(error.sqlState)
  }

  /// Throws an error that no repetition mends: a closed pool, tables that are missing, older or newer, missing rights.
  ///
  /// Asks the server which tables there are, if a statement does not fit them.
  static func checkLasting(_ error: any Error, _ db: PostgresPool, schema: String) throws {
    try db.checkOpen()
    if error is WorkError { throw error }
    guard let refused = error as? PostgresError else { return }
    if refused.kind == .ended { throw refused }
    guard refused.kind == .server, let state = refused.sqlState?.rawValue else { return }
    switch state {
    // The right for a table, a schema or a function.
    case "42501": throw refused
    // No such schema, table or column.
    case "3F000", "42P01", "42703":
      do { try Tables.check(db.reserve, schema: schema) } catch let tables as WorkError { throw tables } catch {
        return
      }
      throw refused
    default: return
    }
  }
}

extension SQLState {
  /// Another transaction has locked a row.
  static let lockNotAvailable = SQLState(rawValue: "55P03")
}

/// How long a cancelled coroutine tells the server what others must know.
let lastWordLimit = Duration.milliseconds(500)

/// Runs `body` for half a second at most, also in a cancelled coroutine: best effort.
///
/// A stop has a limit, and what comes after it must not last longer than the server's answer usually does.
func co_lastWord<R>(_ body: () throws -> R) { _ = co_shield { try? co_timeout(lastWordLimit, body) } }

/// Names of this program in the tables.
enum Program {
  /// Host, process and start: no other program ever has the same.
  static let name: String = {
    var host = [CChar](repeating: 0, count: 256)
    gethostname(&host, host.count - 1)
    let text = String(decoding: host.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
    let start = Int64(Date().timeIntervalSince1970 * 1_000)
    return storable("\(text) \(getpid()) \(start)")
  }()
  private static let count = ThreadMutex(0)
  /// The program's name, with a number.
  static func nextWorker() -> String {
    let number = count.withLock { count -> Int in
      count += 1
      return count
    }
    return "\(name) \(number)"
  }
}
#endif
