#if Postgres
/// What goes wrong with durable work, beside a `PostgresError`.
///
/// Two errors are equal if cause, ``number`` and ``reason`` are. A pattern matches errors of any type: with a number
/// those of that number, and without one all of its cause, as in `catch WorkError.noSuchJob`. A later version may have
/// more causes.
public struct WorkError: Error, Sendable, Hashable, CustomStringConvertible {
  private enum Cause { case newerTables, olderTables, payload, noSuchJob }
  private let cause: Cause
  /// The version of the tables, or the number of the job; 0 in a pattern.
  public let number: Int64
  /// Why the payload cannot be decoded; empty for other causes.
  public let reason: String

  private init(_ cause: Cause, _ number: Int64 = 0, reason: String = "") {
    self.cause = cause
    self.number = number
    self.reason = reason
  }

  /// The tables are of a later major version than the program's; as a pattern, it matches every version.
  public static var newerTables: WorkError { WorkError(.newerTables) }
  /// The tables are of this major version, which is later than the program's.
  public static func newerTables(_ major: Int) -> WorkError { WorkError(.newerTables, Int64(major)) }
  /// The tables are missing, or older than the program; as a pattern, it matches every version.
  public static var olderTables: WorkError { WorkError(.olderTables) }
  /// The tables are of this version, 0 for none, and the program needs a later one: run ``Work/migrate(_:schema:)``.
  public static func olderTables(_ version: Int) -> WorkError { WorkError(.olderTables, Int64(version)) }
  /// The payload of a job cannot be decoded; as a pattern, it matches every job.
  public static var payload: WorkError { WorkError(.payload) }
  /// The payload of this job cannot be decoded, for this reason.
  ///
  /// The job is discarded at once.
  public static func payload(job: Int64, _ reason: String) -> WorkError { WorkError(.payload, job, reason: reason) }
  /// There is no such job; as a pattern, it matches every number.
  public static var noSuchJob: WorkError { WorkError(.noSuchJob) }
  /// There is no job of this number in the queue, or it is not in a state for what was asked.
  public static func noSuchJob(_ id: Int64) -> WorkError { WorkError(.noSuchJob, id) }

  /// Matches an error of the same cause, and of the pattern's number if it has one: `case .payload:`.
  public static func ~= (pattern: WorkError, error: WorkError) -> Bool {
    pattern.cause == error.cause && (pattern.number == 0 || pattern.number == error.number)
  }
  /// Matches a caught error: `catch WorkError.noSuchJob`.
  public static func ~= (pattern: WorkError, error: any Error) -> Bool {
    (error as? WorkError).map { pattern ~= $0 } ?? false
  }

  /// A sentence that says what happened, and what to do.
  public var description: String {
    switch cause {
    case .newerTables:
      "the tables are of major version \(number), and this program knows \(Tables.major); use a later version of it"
    case .olderTables:
      "\(number == 0 ? "there are no tables" : "the tables are of version \(number)"), and this program needs version "
        + "\(Tables.versions.count); run Work.migrate first"
    case .payload: "the payload of job \(number) cannot be decoded; mend its type, and add the job again: \(reason)"
    case .noSuchJob where number < 1: "there is no job \(number); the numbers of jobs begin at 1"
    case .noSuchJob: "the queue has no job \(number) in a state for that; look it up by its number"
    }
  }
}

/// The states of a job, named as in River and Oban.
///
/// A later version may have more, so a `switch` over them needs a `default`.
public struct WorkState: RawRepresentable, Sendable, Hashable, CaseIterable, Codable, CustomStringConvertible {
  private enum Name: String, CaseIterable {
    case available, scheduled, running, retryable, completed, discarded, cancelled
  }
  private let name: Name
  private init(_ name: Name) { self.name = name }

  /// Ready to be claimed.
  public static var available: WorkState { WorkState(.available) }
  /// Not before its time.
  public static var scheduled: WorkState { WorkState(.scheduled) }
  /// Claimed by a worker, until its lease ends.
  public static var running: WorkState { WorkState(.running) }
  /// Failed; it becomes available again at its time.
  public static var retryable: WorkState { WorkState(.retryable) }
  /// Finished.
  public static var completed: WorkState { WorkState(.completed) }
  /// Given up: no attempts were left, or the handler has said so.
  public static var discarded: WorkState { WorkState(.discarded) }
  /// Cancelled.
  public static var cancelled: WorkState { WorkState(.cancelled) }

  /// All states, in the order of a job's life.
  public static var allCases: [WorkState] { Name.allCases.map { WorkState($0) } }
  /// The word in the tables.
  public var rawValue: String { name.rawValue }
  /// The state with this word; nil if there is none.
  public init?(rawValue: String) {
    guard let name = Name(rawValue: rawValue) else { return nil }
    self.name = name
  }
  /// The word in the tables.
  public var description: String { name.rawValue }

  /// Whether no more happens to the job by itself.
  package var isFinal: Bool { self == .completed || self == .discarded || self == .cancelled }
}
#endif
