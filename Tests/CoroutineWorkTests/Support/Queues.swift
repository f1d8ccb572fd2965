#if Postgres
import Coroutine
import CoroutinePostgres
import CoroutineWork
import Foundation

/// A payload.
struct Task: Codable, Sendable, Hashable {
  var number: Int
  var text = ""
}

/// A failure of a handler.
struct Flaky: Error, CustomStringConvertible { var description = "flaky" }

/// Options for tests: they wait for as little as possible, and no machine is so slow that a lease is lost.
func quick(lease: Duration = .seconds(60), attempts: Int = 3) -> WorkOptions {
  var options = WorkOptions()
  options.lease = lease
  options.attempts = attempts
  options.backoff = { _ in .milliseconds(20) }
  options.poll = .milliseconds(50)
  return options
}

/// Runs `body` in a coroutine, with a pool and a schema of its own.
func withSchema<R: Sendable>(
  connections: Int = 6,
  limit: Duration = .seconds(500),
  _ body: @escaping @Sendable (PostgresPool, String) throws -> R
) async throws -> R {
  var options = PostgresPool.Options()
  options.connections = 0...connections
  return try await withPool(options) { db in
    let schema = uniqueName("w")
    try Work.migrate(db, schema: schema)
    defer { _ = co_shield { try? db.run("drop schema \(identifier: schema) cascade") } }
    return try co_timeout(limit) { try body(db, schema) }
  }
}

/// Runs `work` beside `body`, and cancels it when `body` has returned.
func beside<R>(_ work: @escaping @Sendable () throws -> Void, _ body: () throws -> R) throws -> R {
  try co_scope { scope in
    let worker = scope.launch { do { try work() } catch is CancellationError {} }
    defer { worker.cancel() }
    return try body()
  }
}

/// Waits until a condition holds.
///
/// What the server does has no other signal.
func eventually(_ condition: () throws -> Bool) throws {
  while try !condition() { try co_delay(.milliseconds(5)) }
}

extension WorkQueue {
  /// Adds a job in a transaction of its own.
  @discardableResult
  func add(
    _ payload: Payload,
    on db: PostgresPool,
    unique: String? = nil,
    key: String? = nil,
    priority: Int = 0,
    at: Date? = nil
  ) throws -> (id: Int64, isNew: Bool) {
    try db.transaction { t in
      try enqueue(payload, in: t, unique: unique, key: key, priority: priority, at: at)
    }
  }
}

/// A list that handlers add to.
final class Log<Element: Sendable>: Sendable {
  private let list = ThreadMutex<[Element]>([])
  func add(_ element: Element) { list.withLock { $0.append(element) } }
  var all: [Element] { list.withLock { $0 } }
}
#endif
