#if Postgres
import Coroutine

/// A connection inside ``PostgresPool/withConnection(_:)``; `.ended` after it, `.busy` for a second statement at the
/// same time.
public final class PostgresConnection: PostgresSession, Sendable {
  private let wire: Wire
  private let core: PoolCore
  private let claim = Claim()
  /// The server's process.
  public let backend: Int32

  init(_ wire: Wire, _ core: PoolCore) {
    self.wire = wire
    self.core = core
    backend = wire.backend
  }

  /// Runs one statement, and returns all its rows.
  ///
  /// Asks the server.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func run(_ statement: SQL) throws -> PostgresRows {
    try claim.begin()
    defer { claim.end() }
    return PostgresRows(try wire.run(statement))
  }

  /// Runs `body` in a transaction on this connection, as ``PostgresPool/transaction(_:readOnly:retries:_:)`` does.
  ///
  /// Asks the server; suspends while it does.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func transaction<R>(_ body: (PostgresTransaction) throws -> R) throws -> R {
    try TransactionRun(wire, claim, core).run(begin: "begin", isReadOnly: false, body)
  }

  /// Resets what the body has set, or breaks the connection.
  func end() {
    guard claim.close() else {
      // A child of the body still uses it: it finds a loss, and its last release closes the connection.
      wire.abandon()
      return
    }
    if wire.isBroken || core.options.isPooledByTransaction { return }
    wire.reset()
  }
}
#endif
