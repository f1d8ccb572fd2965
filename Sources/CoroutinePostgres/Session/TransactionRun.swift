#if Postgres
import Coroutine

/// How much a transaction sees of others.
public struct PostgresIsolation: Sendable, Hashable {
  private let statement: String

  /// Each statement sees what was committed before it.
  public static var readCommitted: PostgresIsolation {
    PostgresIsolation(statement: "begin isolation level read committed")
  }
  /// All statements see what was committed before the first one.
  public static var repeatableRead: PostgresIsolation {
    PostgresIsolation(statement: "begin isolation level repeatable read")
  }
  /// As if transactions ran one after the other; some fail with 40001, and are run again with `retries`.
  public static var serializable: PostgresIsolation {
    PostgresIsolation(statement: "begin isolation level serializable")
  }

  func begin(isReadOnly: Bool) -> String { isReadOnly ? statement + " read only" : statement }
}

extension PostgresPool {
  /// Runs `body` in a transaction, and commits if it returns.
  ///
  /// ```swift
  /// try db.transaction(retries: 3) { t in
  ///   try t.run("update accounts set cents = cents - \(cents) where id = \(from)")
  ///   try t.run("update accounts set cents = cents + \(cents) where id = \(to)")
  /// }
  /// ```
  ///
  /// Suspends for the connection, and asks the server. It begins with the first statement of `body`; without one,
  /// nothing is asked. If `body` throws, also because it is cancelled, this rolls back and throws that error. If the
  /// rollback is not confirmed within `cancelTimeout`, the connection is closed, which rolls back. A cancellation
  /// during COMMIT comes too late: the commit counts.
  ///
  /// - Parameters:
  ///   - isolation: How much it sees of others.
  ///   - readOnly: Whether the server refuses to write.
  ///   - retries: How often `body` runs again after an error with `isRetryable`. It must have no other effects.
  ///   - body: The statements.
  /// - Throws: What `body` throws; `.rolledBack`; `.commitUnknown`. A loss during COMMIT is looked up by another
  ///   connection (`pg_xact_status`) where possible: it then returns, or throws `.lost` if nothing was committed.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func transaction<R>(
    _ isolation: PostgresIsolation = .readCommitted,
    readOnly: Bool = false,
    retries: Int = 0,
    _ body: (PostgresTransaction) throws -> R
  ) throws -> R {
    var left = retries
    var pause = 10.0
    while true {
      do {
        if let memory {
          try checkOpen()
          return try runTransaction(in: memory, body)
        }
        return try core.with { wire in
          let claim = Claim()
          return try TransactionRun(wire, claim, core)
            .run(begin: isolation.begin(isReadOnly: readOnly), isReadOnly: readOnly, body)
        }
      } catch let error as PostgresError where error.isRetryable && left > 0 { left -= 1 }
      // Those that have failed against each other must not meet again at once.
      try co_delay(.milliseconds(Double.random(in: 0...pause)))
      pause = min(pause * 2, 500)
    }
  }
}

/// One run of a transaction's body.
///
///   BODY --returns--> COMMIT sent --answer COMMIT--> done: hooks run
///    | throws             | answer ROLLBACK --> `.rolledBack`;  an error --> it is thrown
///    v                    | loss --> another connection asks for the transaction's outcome:
///   rollback              |            committed --> done;  aborted --> `.lost`;  else `.commitUnknown`
///                         | cancelled: waits for the answer, at most `cancelTimeout`
///
/// The first statement of the body begins the transaction (Wire+Begin.swift). Without one, the server hears nothing.
struct TransactionRun {
  private let wire: Wire
  private let claim: Claim
  private let core: PoolCore

  init(_ wire: Wire, _ claim: Claim, _ core: PoolCore) { (self.wire, self.claim, self.core) = (wire, claim, core) }

  func run<R>(begin: String, isReadOnly: Bool, _ body: (PostgresTransaction) throws -> R) throws -> R {
    let transaction = PostgresTransaction(wire, claim, core.options.cancelTimeout)
    try co_checkCancelled()
    // Nothing is undone of what was refused here. The connection may be busy for another coroutine, or have gone back
    // to the pool, or have a transaction that is not this one.
    try transaction.use(isBegin: true) { wire in
      if wire.isBroken { throw wire.lost() }
      // Its COMMIT would commit what the outer one has done, whose later statements would run outside of any.
      guard wire.hasNoTransaction else {
        throw PostgresError(.busy, "a transaction of this connection runs: use its savepoint(_:)")
      }
      wire.pendingBegin = Wire.Begin(text: begin, needsID: needsID(isReadOnly))
      wire.isReadOnly = isReadOnly
    }
    defer { wire.isReadOnly = false }
    let value: R
    do {
      value = try body(transaction)
      transaction.end()
    } catch {
      transaction.end()
      transaction.undo("rollback")
      throw error
    }
    do { try claim.begin() } catch {
      wire.abandon()
      throw PostgresError(.busy, "a statement of the transaction was running at its end; nothing was committed")
    }
    do {
      defer { claim.end() }
      try commit(isReadOnly: isReadOnly)
    }
    // Outside of the claim: they may be long.
    for hook in transaction.hooks.withLock({ $0 }) { hook() }
    return value
  }

  /// Whether the outcome of a COMMIT whose answer was lost can be, and has to be, looked up.
  private func needsID(_ isReadOnly: Bool) -> Bool { !isReadOnly && !core.options.isPooledByTransaction }

  private func commit(isReadOnly: Bool) throws {
    if wire.isBroken {
      var error = wire.lost()
      error.hasNoEffect = true
      throw error
    }
    if wire.pendingBegin != nil {
      // Nothing was sent.
      wire.pendingBegin = nil
      return
    }
    if wire.hasNoTransaction {
      throw PostgresError(.ended, "the server has ended this transaction before the end of its body")
    }
    let exchange = CommitExchange(wire, asksForID: needsID(isReadOnly))
    do {
      do { try exchange.finish() } catch let error as PostgresError { throw error } catch {
        // Cancelled, too late: COMMIT was sent.
        do {
          try co_shield { try co_timeout(core.options.cancelTimeout) { try exchange.finish() } }
        } catch is TimeoutError {
          throw wire.lost()
        }
      }
    } catch var error as PostgresError where error.kind == .lost {
      wire.isBroken = true
      // The answer has come, and the end of the connection behind it.
      if exchange.tag == "COMMIT" { return }
      switch isReadOnly ? .aborted : outcome(exchange.id) {
      case .committed: return
      case .aborted: error.hasNoEffect = true
      case .unknown:
        error = PostgresError(.commitUnknown, error.message, sqlState: error.sqlState)
        error.statement = "commit"
      }
      throw error
    } catch {
      // The server has refused COMMIT, or the question before it; the transaction may still be open.
      wire.undo("rollback", within: core.options.cancelTimeout)
      throw error
    }
    if exchange.tag == "ROLLBACK" {
      throw PostgresError(.rolledBack, "an error inside of the transaction was swallowed; nothing was committed")
    }
  }

  private enum Outcome { case committed, aborted, unknown }

  /// Asks for the outcome of a transaction whose connection was lost during COMMIT.
  ///
  /// A crash loses what was not on the disk, and with it numbers of transactions: the server gives them to others. Then
  /// `committed` may be said of another one, so it counts only if the server has not crashed since. `aborted` counts:
  /// the number of a transaction that is on the disk is not given out again.
  private func outcome(_ id: CommitExchange.ID) -> Outcome {
    do { return try outcome(id, within: core.options.acquireTimeout) } catch {
      // Cancelled. The commit may count nevertheless, so its outcome is asked for, but not for as long.
      return co_shield { (try? outcome(id, within: core.options.cancelTimeout)) ?? .unknown }
    }
  }

  /// Asks for the outcome; throws the cancellation error alone.
  private func outcome(_ id: CommitExchange.ID, within time: Duration) throws -> Outcome {
    guard case .assigned(let number) = id else {
      // One without a number has written nothing.
      return id == .none ? .aborted : .unknown
    }
    let end = ContinuousClock.now + time
    while ContinuousClock.now < end {
      do {
        let other = try core.connect(until: end)
        defer { core.state.withLock { $0.closed += 1 } }
        let query: SQL = "select pg_xact_status(\(number)::text::xid8)"
        while true {
          switch try co_timeout(end - .now, { try other.run(query) }).string(0, 0) {
          case "committed": return wire.epoch != nil && wire.epoch == other.epoch ? .committed : .unknown
          case "aborted": return .aborted
          case "in progress": try co_delay(.milliseconds(50))
          default: return .unknown
          }
        }
      } catch let error as PostgresError where error.kind == .lost { continue } catch {
        try co_checkCancelled()
        return .unknown
      }
    }
    return .unknown
  }
}
#endif
