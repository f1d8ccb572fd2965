#if Postgres
package import Coroutine

/// Connections to one database, made when they are needed.
///
/// A connection serves one coroutine at a time.
///
/// ```swift
/// let db = try PostgresPool("postgresql://shop@db.example/shop")
/// let names = try db.all("select name from people where age > \(age)", as: String.self)
/// ```
///
/// A coroutine that waits for a connection gets one in the order of asking; a cancelled one has taken none. Only a
/// connection that is idle, alive and outside of any transaction is given out; others are closed and replaced. While
/// the server starts, is full or not there, connecting is tried again until `acquireTimeout`; then the last error is
/// thrown. One that another coroutine gives back meanwhile is taken instead.
public final class PostgresPool: PostgresSession, Sendable {
  let core: PoolCore
  let pipelines: PipelineGroup
  let listener: Listener
  /// What takes the server's place, if anything does.
  package let memory: (any MemoryDatabase)?
  /// See ``reserve``.
  let reserved = ThreadMutex<PostgresPool?>(nil)
  /// Fulfilled when the pool begins to close, for those that wait for nothing of the pool's.
  package let closing = Promise<Void>()

  /// Creates a pool without connections.
  ///
  /// Never connects, never suspends; any thread.
  ///
  /// - Parameters:
  ///   - server: A URL or "host=… dbname=…", as libpq reads it. What is not there comes from PG* variables. A name is
  ///     looked up on a thread of a pool; all addresses are tried, and all hosts (`target_session_attrs`).
  ///   - options: The limits.
  /// - Throws: `.cannotConnect` if the text cannot be read.
  public convenience init(_ server: String, options: Options = .init()) throws {
    self.init(PoolCore(try Server(server), options))
  }

  init(_ core: PoolCore, memory: (any MemoryDatabase)? = nil) {
    self.core = core
    self.memory = memory
    pipelines = PipelineGroup(core)
    listener = Listener(core)
  }

  deinit {
    listener.end()
    pipelines.end()
    // Idle connections are closed here; those in use when their coroutines return them.
    let (idle, reaper) = core.state.withLock { state in
      state.phase = .closed
      state.closed += state.idle.count
      defer { state.idle = [] }
      return (state.idle, state.reaper)
    }
    reaper?.cancel()
    _ = consume idle
  }

  /// Runs one statement on a free connection, and returns all its rows.
  ///
  /// Asks the server; suspends until one is free. What it leaves in the session, as SET does, is undone after it.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func run(_ statement: SQL) throws -> PostgresRows {
    if let memory {
      try checkOpen()
      return try memory.run(statement.checkedForMemory())
    }
    return PostgresRows(try core.with { try $0.run(statement) })
  }

  /// Runs `body` with a connection for it alone: for SET, temporary tables, session locks.
  ///
  /// Suspends until one is free. Before it returns to the pool, DISCARD ALL resets what `body` has set.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func withConnection<R>(_ body: (PostgresConnection) throws -> R) throws -> R {
    if memory != nil { throw Self.needsServer("connections") }
    return try core.with { wire in
      let connection = PostgresConnection(wire, core)
      defer { connection.end() }
      return try body(connection)
    }
  }

  /// A moment's counts.
  ///
  /// Any thread; never suspends.
  public var statistics: PostgresStatistics {
    let now = ContinuousClock.now
    return core.state.withLock { state in
      // In any order: they are counted.
      let used = state.uses.values.filter { $0.wire != nil }
      return PostgresStatistics(
        idle: state.idle.count,
        inUse: used.count,
        connecting: state.uses.count - used.count,
        waiting: state.waits.count,
        longestWait: state.waits.values.min().map { now - $0 } ?? .zero,
        longestUse: used.map(\.since).min().map { now - $0 } ?? .zero,
        opened: state.opened,
        closed: state.closed,
        cancelled: state.cancelled,
        discarded: state.discarded
      )
    }
  }
}
#endif
