#if Postgres
extension PostgresPool {
  /// What a pool does, and for how long.
  public struct Options: Sendable {
    /// The numbers of connections: those that are kept when they are idle, and the most.
    public var connections = 0...10
    /// The limit of the wait for a free connection, with connecting.
    public var acquireTimeout: Duration = .seconds(30)
    /// The limit of the wait for the server's answer to a cancellation or a rollback.
    public var cancelTimeout: Duration = .seconds(3)
    /// The age after which a connection is replaced; less by up to a tenth, so that not all end at once.
    public var maxLifetime: Duration = .seconds(3600)
    /// The time after which an idle connection is closed, of those above the minimum.
    public var maxIdle: Duration = .seconds(600)
    /// A connection that was idle for longer is checked before its use, without a round trip.
    public var checkAfter: Duration = .milliseconds(500)
    /// The server ends a statement that takes longer, with 57014; set by SET, which poolers allow.
    public var statementTimeout: Duration?
    /// The server ends a connection whose transaction waits for longer, with 25P03.
    public var idleInTransactionTimeout: Duration? = .seconds(60)
    /// The statements that are prepared on each connection; outdated ones (0A000, 26000) are renewed; 0: none.
    public var statementCache = 256
    /// The connections of ``PostgresPool/pipeline``, in addition to `connections`.
    public var pipelines = 1
    /// Behind a pooler in transaction mode: nothing is prepared by name, no SET, and `listen` and `pipeline` throw.
    public var isPooledByTransaction = false
    /// The password of each new connection, in place of the address's: for tokens that expire.
    ///
    /// Called in a coroutine, and may suspend; what it throws, the caller gets who needs the connection.
    public var password: (@Sendable () throws -> String)?
    /// Receives what the server says beside a result, as `raise notice` does; without it, notices are dropped.
    ///
    /// Called while a connection reads, by the coroutine that uses it, so it must be short and must not suspend.
    public var onNotice: (@Sendable (PostgresError) -> Void)?
    /// How long a listener's connection may be silent before it is asked whether it lives.
    var heartbeat: Duration = .seconds(10)
    /// Creates the default options.
    public init() {}
  }
}

/// A moment's counts.
public struct PostgresStatistics: Sendable {
  /// Connections that are idle, in use, and being made; coroutines that wait for one.
  public var idle, inUse, connecting, waiting: Int
  /// How long the coroutines that wait, or the connections in use, have done so by now, at most.
  public var longestWait, longestUse: Duration
  /// Connections that were opened and closed, statements that were cancelled, and connections that were closed because
  /// they could not be used again; since the pool was made.
  public var opened, closed, cancelled, discarded: Int
}
#endif
