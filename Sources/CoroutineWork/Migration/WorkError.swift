#if Postgres
/// What goes wrong with durable work, beside a `PostgresError`.
public enum WorkError: Error, Sendable, Hashable {
  /// The tables are of this major version, which is later than the program's.
  case newerTables(Int)
  /// The payload of this job cannot be decoded, for this reason. The job is discarded at once.
  case payload(job: Int64, String)
  /// There is no job of this number in the queue, or it is not in a state for what was asked.
  case noSuchJob(Int64)
}

/// The states of a job, named as in River and Oban.
public enum WorkState: String, Sendable, Hashable, CaseIterable, Codable {
  /// Ready to be claimed.
  case available
  /// Not before its time.
  case scheduled
  /// Claimed by a worker, until its lease ends.
  case running
  /// Failed; it becomes available again at its time.
  case retryable
  /// Finished.
  case completed
  /// Given up: no attempts were left, or the handler has said so.
  case discarded
  /// Cancelled.
  case cancelled

  /// Whether no more happens to the job by itself.
  package var isFinal: Bool { self == .completed || self == .discarded || self == .cancelled }
}
#endif
