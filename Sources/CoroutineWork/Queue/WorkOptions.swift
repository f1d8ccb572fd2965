#if Postgres
/// How a queue treats its jobs.
public struct WorkOptions: Sendable {
  /// How long a worker that says nothing keeps a job.
  ///
  /// Extended every third of it while the handler runs; at least 1 s.
  public var lease: Duration = .seconds(30)
  /// How often a job is tried; then it is discarded.
  ///
  /// A crash of the worker counts, so a job that kills it ends too.
  public var attempts = 20
  /// The limit of one attempt: the handler is cancelled, and the attempt has failed.
  public var timeout: Duration? = .seconds(900)
  /// How long a job waits after its failed attempt of this number: attempt⁴ s, and up to 10 % more by chance.
  public var backoff: @Sendable (_ attempt: Int) -> Duration = { attempt in
    let seconds = Double(min(max(attempt, 1), 100))
    return .seconds(seconds * seconds * seconds * seconds * Double.random(in: 1...1.1))
  }
  /// How often an idle worker looks for jobs; notifications only shorten it.
  public var poll: Duration = .seconds(1)
  /// Whether idle workers listen.
  ///
  /// False behind a pooler in transaction mode; then polling is all.
  public var usesNotifications = true
  /// How long completed jobs are kept; then they are deleted, in batches.
  ///
  /// Zero deletes them in `finish`.
  public var keepCompleted: Duration = .seconds(86_400)
  /// How long discarded and cancelled jobs are kept.
  public var keepDiscarded: Duration = .seconds(7 * 86_400)
  /// Creates the defaults.
  public init() {}

  /// The lease that is used.
  var usedLease: Duration { max(lease, .seconds(1)) }
}

extension Duration {
  /// Whole milliseconds, rounded down; at most those of 10,000 years, which the server can add to a date.
  var milliseconds: Int {
    let (seconds, attoseconds) = components
    let most: Int64 = 315_576_000_000
    guard seconds < most else { return Int(most) * 1_000 }
    guard seconds > -most else { return -Int(most) * 1_000 }
    return Int(seconds) * 1_000 + Int(attoseconds / 1_000_000_000_000_000)
  }
}
#endif
