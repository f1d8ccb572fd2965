#if Postgres
import Coroutine

// Connections of CoroutineWork's own, beside `connections`. Who extends a lease behind the statements of the program
// that holds it loses it when those are slow; so no statement of the program's ever waits for one of these, nor the
// other way round.
//
// Invariant: the reserve lives as long as its pool, and is closed after it: statements that run in a pool which is
// being closed may need their lease to the end.

extension PostgresPool {
  /// A small pool to the same server, for short statements that must not wait for the program's; made at its first use.
  ///
  /// Its answers to cancellations are waited for half a second at most. Closed with this pool. Never suspends; any
  /// thread.
  package var reserve: PostgresPool {
    // In memory no statement waits for another one's connection.
    if memory != nil { return self }
    return reserved.withLock { reserved in
      if let reserved { return reserved }
      var options = core.options
      options.connections = 0...2
      options.acquireTimeout = min(options.acquireTimeout, .seconds(5))
      options.cancelTimeout = min(options.cancelTimeout, .milliseconds(500))
      // A program's limit for its own statements; these have deadlines of their own.
      options.statementTimeout = nil
      let made = PostgresPool(PoolCore(core.server, options))
      // The close of this pool has not seen it.
      if core.state.withLock({ $0.phase != .open }) { made.core.state.withLock { $0.phase = .closed } }
      reserved = made
      return made
    }
  }

  /// Throws `.ended` once the pool is being closed.
  ///
  /// Never suspends; any thread.
  package func checkOpen() throws { if core.state.withLock({ $0.phase != .open }) { throw PoolCore.ended } }

  /// Closes the reserve, after all that may need it.
  func closeReserve() throws {
    guard let made = reserved.withLock({ $0 }) else { return }
    try made.close(drain: .zero)
  }
}
#endif
