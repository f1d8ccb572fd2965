#if Postgres
import Coroutine
public import CoroutinePostgres

extension PostgresPool {
  /// Runs `body` while this program is the only holder of `name`; waits until it is.
  ///
  /// A row, no session lock, so poolers and lost connections do no harm. The tables are those of `Work.migrate` in
  /// the schema `work`.
  ///
  /// Suspends until the lease is free; waiters of all programs get it in no particular order, at most `ttl` after its
  /// holder has died. It is extended every third of `ttl`. If it could not be extended until a sixth before its end,
  /// by this program's steady clock, `body` is cancelled, and this throws `.leaseLost`. A body that does not wait, or
  /// a program that was stopped, may overlap with the next holder: so write by ``Lease/transaction(_:)``, or pass on
  /// `fence`. Cancelled: cancels `body`, gives the lease back, throws.
  ///
  /// While the server is not there, it tries again. `ttl` is at least 1 s.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func lease<R>(_ name: String, ttl: Duration = .seconds(30), _ body: (Lease) throws -> R) throws -> R {
    let ttl = max(ttl, .seconds(1))
    var pause = Duration.milliseconds(50)
    while true {
      let taken: Lease.Taken
      do { taken = try takeUncut(name, ttl: ttl) } catch let outage as PostgresError where Self.isOutage(outage) {
        try co_checkCancelled()
        try co_delay(pause)
        pause = min(pause * 2, .seconds(5))
        continue
      }
      switch taken {
      // Not where outages are caught: an error of `body` is its caller's, and `body` runs once.
      case .lease(let lease): return try hold(lease, body)
      case .held(let left):
        pause = .milliseconds(50)
        // A lease that is given back is free at once; a third of `ttl`, but a second at most, is the wait for it. One
        // that ends by itself is free at its end, unless a transaction of its holder is open.
        let usual = min(ttl / 3, .seconds(1)) * Double.random(in: 0.2...1)
        try co_delay(left > .zero ? min(usual, left + .milliseconds(2)) : usual)
      }
    }
  }

  /// Does the same as `lease`, but returns nil at once if somebody else holds the lease.
  ///
  /// Asks the server; throws what that throws.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func tryLease<R>(_ name: String, ttl: Duration = .seconds(30), _ body: (Lease) throws -> R) throws -> R? {
    let ttl = max(ttl, .seconds(1))
    guard case .lease(let lease) = try takeUncut(name, ttl: ttl) else { return nil }
    return try hold(lease, body)
  }

  /// Not cut off by a cancellation: the row might be taken for `ttl`, without a holder.
  private func takeUncut(_ name: String, ttl: Duration) throws -> Lease.Taken {
    try co_checkCancelled()
    do {
      return try co_shield { try co_timeout(.seconds(10)) { try Lease.take(name, ttl: ttl, on: self) } }
    } catch is TimeoutError {
      throw PostgresError(.lost, "the server has not answered within 10 s")
    }
  }

  private static func isOutage(_ error: PostgresError) -> Bool {
    switch error.kind {
    case .lost, .cannotConnect, .poolTimeout: true
    case .server: error.isRetryable || error.sqlState == .adminShutdown || error.sqlState == .tooManyConnections
    default: false
    }
  }

  /// Runs `body`, extends the lease beside it, and gives it back.
  private func hold<R>(_ lease: Lease, _ body: (Lease) throws -> R) throws -> R {
    // Best effort: without it the lease ends by itself.
    defer { co_shield { _ = try? co_timeout(.seconds(3)) { try lease.release() } } }
    let isLost = ThreadMutex(false)
    do {
      let result = try co_scope { scope -> R in
        let keepers = [lease.keep, lease.watch].map { keep in
          scope.launch(name: "lease \(lease.name)") {
            do { try keep() } catch {
              guard error is PostgresError else { return }
              isLost.withLock { $0 = true }
              scope.cancel(error)
            }
          }
        }
        defer { for keeper in keepers { keeper.cancel() } }
        return try body(lease)
      }
      if isLost.withLock({ $0 }) { throw lease.loss }
      return result
    } catch {
      if isLost.withLock({ $0 }) { throw lease.loss }
      throw error
    }
  }
}

extension Lease {
  /// Extends the lease every third of it; throws `.leaseLost` if it is another's.
  ///
  /// Suspends, until cancelled.
  @Sendable
  func keep() throws {
    var wait = ttl / 3
    while true {
      try co_delay(wait)
      do {
        try co_timeout(ttl / 3) { try extend() }
        wait = ttl / 3
      } catch let error as PostgresError where error.kind == .leaseLost {
        throw error
      } catch {
        try co_checkCancelled()
        wait = ttl / 20
      }
    }
  }

  /// Throws `.leaseLost` when a sixth of the lease is left.
  ///
  /// Suspends, until cancelled.
  @Sendable
  func watch() throws {
    while !isEnding { try co_delay(max(untilCut, .milliseconds(1))) }
    throw loss
  }
}
#endif
