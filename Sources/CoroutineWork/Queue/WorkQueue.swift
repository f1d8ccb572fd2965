#if Postgres
import Coroutine
public import CoroutinePostgres
import FoundationEssentials

/// A queue of jobs with one type of payload, stored as jsonb.
///
/// Any number of programs may add and work.
///
/// ```swift
/// let mails = WorkQueue<Welcome>("mails", on: db)
/// try db.transaction { t in try mails.enqueue(Welcome(order: "7"), in: t) }
/// try mails.work { job in
///   try send(job.payload, key: job.id)
///   try job.finish { t in try t.run("update orders set mailed = now() where id = \(job.payload.order)") }
/// }
/// ```
public final class WorkQueue<Payload: Codable & Sendable>: Sendable {
  let core: QueueCore
  /// The name in the tables.
  package var name: String { core.queue }

  /// Creates a queue.
  ///
  /// Never connects, never suspends; any thread.
  ///
  /// Traps unless `name` has 1 to 57 bytes.
  public init(_ name: String, on db: PostgresPool, schema: String = "work", options: WorkOptions = .init()) {
    precondition((1...57).contains(name.utf8.count), "the name of a queue has 1 to 57 bytes, because of its channel's")
    core = QueueCore(name, on: db, schema: schema, options: options)
  }
}

/// What queues of all payloads have in common.
final class QueueCore: Sendable {
  let db: PostgresPool
  let schema: String
  let options: WorkOptions
  let table: JobTable
  let wakeUps: WakeUps

  var queue: String { table.queue }

  init(_ queue: String, on db: PostgresPool, schema: String, options: WorkOptions) {
    self.db = db
    self.schema = schema
    self.options = options
    table = JobTable(queue: queue, schema: schema)
    wakeUps = WakeUps.shared(db, schema: schema, queue: queue)
  }

  /// Wakes workers, after a commit.
  func wake() { wakeUps.notify(db, isSent: options.usesNotifications) }
}

/// A value as JSON text.
///
/// Throws `.decoding` with the reason if it cannot be encoded.
func jsonText(_ value: some Encodable) throws -> String {
  do { return String(decoding: try JSONEncoder().encode(value), as: UTF8.self) } catch {
    throw PostgresError(.decoding, "a value cannot be encoded as JSON: \(error)")
  }
}

/// The payload of a job, or the reason why it cannot be decoded.
func decoded<Payload: Decodable>(_ text: String, of job: Int64) -> Result<Payload, WorkError> {
  do { return .success(try JSONDecoder().decode(Payload.self, from: Data(text.utf8))) } catch {
    return .failure(.payload(job: job, storable("\(error)")))
  }
}
#endif
