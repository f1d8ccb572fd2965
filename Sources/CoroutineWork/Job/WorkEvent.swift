#if Postgres
public import CoroutinePostgres
public import FoundationEssentials

/// What happens in a worker.
///
/// Told on the coroutine that it happens to. A later version may tell more, so a `switch` over it needs an
/// `@unknown default`. It is no structure, because programs match its cases with their values.
@nonexhaustive(warn)
public enum WorkEvent: Sendable {
  /// A handler begins.
  case started(Int64, attempt: Int)
  /// A job has been completed, after this time in its handler.
  case finished(Int64, Duration)
  /// An attempt has failed.
  case failed(Int64, attempt: Int, any Error)
  /// A job has been given up; after `failed` if it had no attempts left.
  case discarded(Int64, any Error)
  /// The job belongs to another worker by now, or may do so; its handler is cancelled.
  case leaseLost(Int64)
  /// The server does not answer; told once until `reconnected`.
  case disconnected(PostgresError)
  /// The server has answered again.
  case reconnected
}

/// A job as it is stored.
public struct WorkRecord<Payload: Codable & Sendable>: Sendable {
  /// The job's number.
  public var id: Int64
  /// What it waits for, or how it has ended.
  public var state: WorkState
  /// The payload, or why it cannot be decoded.
  public var payload: Result<Payload, WorkError>
  /// The attempts that have counted, and how many there may be.
  public var attempt, attempts: Int
  /// Not before this date, and when the job was added.
  public var at, enqueuedAt: Date
  /// When the lease of a running job ends, and when the job has ended.
  public var leaseEnds, endedAt: Date?
  /// Host, process and start of the program that holds or held the job.
  public var worker: String?
  /// The errors of the last 10 failed attempts, as their descriptions tell them: what a handler throws is stored.
  public var errors: [String]
}

/// How a queue is.
public struct WorkHealth: Sendable {
  /// How long the job has waited that is next.
  public var oldestAvailable: Duration
  /// Running jobs whose lease has ended, and dead rows of the table of all jobs.
  public var expiredLeases, deadRows: Int
  /// The age of the oldest transaction in the whole server: it keeps dead rows, and slows claims down.
  public var oldestTransaction: Duration
}
#endif
