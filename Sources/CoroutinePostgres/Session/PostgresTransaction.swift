#if Postgres
import Coroutine
import Synchronization

/// A transaction inside its body; `.ended` after it.
///
/// <!-- compiled: Tests/CoroutinePostgresTests/PageTests.swift -->
/// ```swift
/// try db.transaction(retries: 3) { t in
///   let taken = try t.run("update stock set left_over = left_over - 1 where item = \(item) and left_over > 0")
///   if taken.affected == 0 { throw OutOfStock() }
///   let id = try t.first(
///     "insert into orders (item, customer) values (\(item), \(customer)) returning id", as: Int.self)
///   try t.notify("orders", item)
///   return id!
/// }
/// ```
///
/// After an error of the server every statement fails with 25P02.
public final class PostgresTransaction: PostgresSession, Sendable {
  /// nil in memory.
  let wire: Wire?
  /// What takes the server's place, if anything does.
  package let memory: (any MemoryTransaction)?
  let claim: Claim
  let cancelTimeout: Duration
  /// What runs after the commit; shared by the savepoints.
  let hooks: ThreadMutex<[@Sendable () -> Void]>
  private let depth: Int
  /// Set before the end takes the claim.
  ///
  /// A statement looks after it has taken the claim, so one of them sees the other.
  private let isEnded = Atomic<Bool>(false)

  init(_ wire: Wire, _ claim: Claim, _ cancelTimeout: Duration) {
    (self.wire, self.claim, self.cancelTimeout) = (wire, claim, cancelTimeout)
    memory = nil
    hooks = ThreadMutex([])
    depth = 0
  }

  init(_ memory: any MemoryTransaction) {
    self.memory = memory
    (wire, claim, cancelTimeout) = (nil, Claim(), .zero)
    hooks = ThreadMutex([])
    depth = 0
  }

  private init(inside outer: PostgresTransaction) {
    (wire, memory, claim, cancelTimeout) = (outer.wire, outer.memory, outer.claim, outer.cancelTimeout)
    hooks = outer.hooks
    depth = outer.depth + 1
  }

  /// Runs one statement, and returns all its rows.
  ///
  /// Asks the server.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func run(_ statement: SQL) throws -> PostgresRows {
    // As `use` does, whose closure would count a reference to each part of the statement.
    try beginUse()
    defer { claim.end() }
    guard let wire else { return try memory?.run(statement.checkedForMemory()) ?? PostgresRows() }
    do { return PostgresRows(try wire.run(statement)) } catch { throw beforeCommit(error) }
  }

  /// Runs `body` with the connection while no other statement does.
  ///
  /// A loss in here is one before COMMIT.
  func use<R>(isBegin: Bool = false, _ body: (Wire) throws -> R) throws -> R {
    try beginUse(isBegin: isBegin)
    defer { claim.end() }
    guard let wire else { throw PostgresPool.needsServer("cursor or copy") }
    do { return try body(wire) } catch { throw beforeCommit(error) }
  }

  /// Takes the claim; throws `.busy` or `.ended`.
  ///
  /// A statement must not run outside of its transaction. So it is refused if the server has ended the transaction,
  /// whatever has done that.
  private func beginUse(isBegin: Bool = false) throws {
    try claim.begin()
    if isEnded.load(ordering: .acquiring) {
      claim.end()
      throw PostgresError(.ended, "this transaction was used after its end")
    }
    if !isBegin, let wire, wire.hasNoTransaction {
      claim.end()
      throw PostgresError(.ended, "the server has ended this transaction before the end of its body")
    }
  }

  private func beforeCommit(_ error: any Error) -> any Error {
    // Not the loss of another connection, which a body of `forEach` may throw.
    guard let wire, wire.isBroken, var loss = error as? PostgresError, loss.kind == .lost else { return error }
    loss.hasNoEffect = true
    return loss
  }

  /// Lets no statement begin any more.
  func end() { isEnded.store(true, ordering: .releasing) }

  /// Runs `body` so that its failure undoes its own statements alone.
  ///
  /// Asks the server; if cancelled, undoes them too.
  ///
  /// Suspends while the server is asked. A `body` that throws is rolled back to its start, and the error is thrown on.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func savepoint<R>(_ body: (PostgresTransaction) throws -> R) throws -> R {
    let inner = PostgresTransaction(inside: self)
    let name = "co_\(inner.depth)"
    let hookCount = hooks.withLock { $0.count }
    let mark = try memory?.mark()
    if mark == nil { _ = try use { try $0.command("savepoint \(name)") } }
    do {
      let value = try body(inner)
      inner.end()
      if mark == nil { _ = try use { try $0.command("release savepoint \(name)") } }
      return value
    } catch {
      inner.end()
      hooks.withLock { if $0.count > hookCount { $0.removeLast($0.count - hookCount) } }
      if let mark { memory?.undo(to: mark) } else { undo("rollback to savepoint \(name); release savepoint \(name)") }
      throw error
    }
  }

  /// Runs a command that undoes something, also when cancelled; breaks the connection if it is not confirmed in time.
  func undo(_ command: String) {
    guard let wire else { return }
    if wire.isAbandoned.load(ordering: .acquiring) { return }
    do {
      try claim.withClaim {
        wire.pendingBegin = nil
        wire.undo(command, within: cancelTimeout)
      }
    } catch {
      // A child of the body still uses the connection.
      wire.abandon()
    }
  }

  /// Sends a notification when this transaction commits.
  ///
  /// At most 7,999 bytes, else `.server`. Asks the server.
  ///
  /// Commits that notify run one at a time in the whole server, each with its own fsync: seldom, and for wake-ups.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func notify(_ channel: String, _ payload: String = "") throws {
    try run("select pg_notify(\(channel), \(payload))")
  }

  /// Runs `body` after the commit, on this coroutine, before `transaction` returns; not if it fails.
  ///
  /// Never suspends.
  ///
  /// Bodies run in the order of these calls. One that was added inside of a savepoint which failed does not run.
  public func afterCommit(_ body: @escaping @Sendable () -> Void) { hooks.withLock { $0.append(body) } }
}
#endif
