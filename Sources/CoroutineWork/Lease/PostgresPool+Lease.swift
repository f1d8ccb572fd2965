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
  /// The lease is kept over a connection beside those of the pool, so a program whose connections are all busy keeps
  /// it.
  /// While the server is not there, it tries again; once the pool is closed, it throws `.ended`. `ttl` is at least 1 s.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func lease<R>(_ name: String, ttl: Duration = .seconds(30), _ body: (Lease) throws -> R) throws -> R {
    let ttl = max(ttl, .seconds(1))
    var pause = Duration.milliseconds(50)
    while true {
      let taken: Lease.Taken
      do { taken = try take(name, ttl: ttl) } catch let outage as PostgresError where Self.isOutage(outage) {
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
        let usual = min(ttl / 3, .seconds(1)) * chance(0.2...1)
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
    guard case .lease(let lease) = try take(name, ttl: ttl) else { return nil }
    return try hold(lease, body)
  }

  /// Takes the lease if it is free; gives it back if the answer is lost, because nobody would hold it for `ttl`.
  private func take(_ name: String, ttl: Duration) throws -> Lease.Taken {
    let holder = Program.nextWorker()
    do {
      do { return try co_timeout(.seconds(10)) { try Lease.take(name, holder: holder, ttl: ttl, on: self) } } catch {
        // In memory no answer is lost.
        if memory == nil {
          co_lastWord {
            try reserve.run(
              "update work.lease set ends = now() where name = \(name) and holder = \(holder) and ends > now()"
            )
          }
        }
        throw error
      }
    } catch is TimeoutError where !co_isCancelled {
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
    defer {
      let limit: Duration = co_isCancelled ? lastWordLimit : .seconds(3)
      co_shield { _ = try? co_timeout(limit) { try lease.release() } }
    }
    let loss = ThreadMutex<PostgresError?>(nil)
    do {
      let result = try co_scope { scope -> R in
        let keepers = [lease.keep, lease.watch].map { keep in
          scope.launch(name: "lease \(lease.name)") {
            do { try keep() } catch {
              guard let error = error as? PostgresError else { return }
              loss.withLock { $0 = error }
              scope.cancel(error)
            }
          }
        }
        defer { for keeper in keepers { keeper.cancel() } }
        return try body(lease)
      }
      if let loss = loss.withLock({ $0 }) { throw loss }
      return result
    } catch {
      if let loss = loss.withLock({ $0 }) { throw loss }
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
      } catch let error as PostgresError where error.kind == .leaseLost || error.kind == .ended {
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
