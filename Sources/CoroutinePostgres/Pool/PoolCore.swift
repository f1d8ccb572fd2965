#if Postgres
import Coroutine
import Synchronization

/// The connections of one pool, and the queue of those that want one.
///
/// A permit of `permits` is the right to use a connection; there are as many as connections at most. FairSemaphore
/// gives permits in the order of asking, and a cancelled waiter has taken none. The holder of a permit takes an idle
/// connection or makes one. It returns the connection first and the permit second, so the next one finds it.
///
/// Invariants, whenever the lock is free
///  1. `uses` has one entry for each permit that was taken, and idle + uses with a connection <= the permits.
///  2. A connection is in `idle`, or in one use, or nobody's; nobody's are closed by their last release.
///  3. An idle connection is READY (Wire.swift), outside of any transaction.
///
///   OPEN --close--> CLOSING: a permit without end for each waiter, which then finds CLOSING and throws `.ended`
///                      | the last use ends, or `drain` and `cancelTimeout` have passed
///                      v
///                   CLOSED
final class PoolCore: Sendable {
  let server: Server
  let options: PostgresPool.Options
  let permits: FairSemaphore
  let state = ThreadMutex(PoolState())
  let settings: Wire.Settings

  init(_ server: Server, _ options: PostgresPool.Options) {
    self.server = server
    self.options = options
    permits = FairSemaphore(max(1, options.connections.upperBound), limit: .unbounded)
    let state = self.state
    settings = Wire.Settings(
      cancelTimeout: options.cancelTimeout,
      statementCache: options.statementCache,
      isPooledByTransaction: options.isPooledByTransaction,
      statementTimeout: options.statementTimeout,
      idleInTransactionTimeout: options.idleInTransactionTimeout,
      maxLifetime: options.maxLifetime,
      onCancel: { state.withLock { $0.cancelled += 1 } }
    )
  }

  static let ended = PostgresError(.ended, "the pool was closed")

  /// Runs `body` with a connection that nobody else uses.
  func with<R>(_ body: (Wire) throws -> R) throws -> R {
    let (wire, use) = try acquire()
    defer { release(wire, use) }
    return try body(wire)
  }

  // MARK: Acquire

  private func acquire() throws -> (Wire, Int) {
    // Also throws outside a coroutine.
    try co_checkCancelled()
    let start = ContinuousClock.now
    if state.withLock({ $0.phase != .open }) { throw Self.ended }
    if !permits.tryAcquire() { try waitForPermit(start) }
    let use = beginUse()
    guard let use else {
      permits.release()
      throw Self.ended
    }
    do {
      let wire = try takeIdle() ?? connect(until: start + options.acquireTimeout)
      // A close meanwhile has not seen this connection.
      let isOpen = state.withLock { state -> Bool in
        guard state.phase == .open else {
          state.closed += 1
          return false
        }
        state.uses[use]?.wire = wire
        return true
      }
      guard isOpen else { throw Self.ended }
      return (wire, use)
    } catch {
      endUse(use)
      throw error
    }
  }

  private func takeIdle() -> Wire? {
    while let wire = state.withLock({ $0.idle.popLast() }) {
      let now = ContinuousClock.now
      let isFresh = now - wire.idleSince < options.checkAfter
      if now - wire.born < wire.lifetime, isFresh || wire.isAlive() { return wire }
      state.withLock { $0.closed += 1 }
    }
    return nil
  }

  /// Connects; tries again while the server starts, is full or not there.
  func connect(until end: ContinuousClock.Instant) throws -> Wire {
    var pause = Duration.milliseconds(20)
    var last: PostgresError?
    while true {
      let left = end - .now
      do {
        guard left > .zero else { throw TimeoutError() }
        let wire = try co_timeout(left) { try Wire.connect(to: server, settings: settings) }
        state.withLock { $0.opened += 1 }
        return wire
      } catch is TimeoutError where !co_isCancelled {
        throw last ?? PostgresError(.cannotConnect, "the server has not answered within \(options.acquireTimeout)")
      } catch let error as PostgresError {
        last = error
        guard error.isPassing, ContinuousClock.now + pause < end else { throw error }
      }
      try co_delay(pause)
      if state.withLock({ $0.phase != .open }) { throw Self.ended }
      pause = min(pause * 2, .milliseconds(500))
    }
  }

  // MARK: Release

  private func release(_ wire: Wire, _ use: Int) {
    let now = ContinuousClock.now
    // An abandoned one is not even looked at.
    let isBad = wire.isAbandoned.load(ordering: .acquiring) || wire.isBroken || !wire.isIdle
    let isUsable = !isBad && now - wire.born < wire.lifetime
    if isUsable { wire.idleSince = now }
    let startsReaper = state.withLock { state -> Bool in
      state.uses[use]?.wire = nil
      guard isUsable, state.phase == .open else {
        state.closed += 1
        if isBad { state.discarded += 1 }
        return false
      }
      state.idle.append(wire)
      defer { state.hasReaper = true }
      return !state.hasReaper
    }
    endUse(use)
    if startsReaper { reap() }
  }

  private func endUse(_ use: Int) {
    let closers = state.withLock { state -> [Resumer<Void>] in
      state.uses[use] = nil
      guard state.uses.isEmpty else { return [] }
      defer { state.closers = [] }
      return state.closers
    }
    for closer in closers { closer.resume(()) }
    permits.release()
  }

  /// Closes connections that have been idle for too long, in a coroutine that ends when none is left.
  private func reap() {
    let interval = max(.milliseconds(10), min(options.maxIdle, options.maxLifetime) / 4)
    let reaper = co_launch(name: "PostgresPool closes old connections") { [weak self, options] in
      while true {
        do { try co_delay(interval) } catch { return }
        guard let self else { return }
        let (old, isDone) = self.state.withLock { state in
          let old = state.takeOld(at: .now, maxIdle: options.maxIdle, least: options.connections.lowerBound)
          let isDone = state.idle.isEmpty
          if isDone { state.hasReaper = false }
          return (old, isDone)
        }
        _ = consume old
        if isDone { return }
      }
    }
    let isOver = state.withLock { state in
      state.reaper = reaper
      return state.phase != .open
    }
    if isOver { reaper.cancel() }
  }
}

extension PostgresError {
  /// Whether another attempt to connect may succeed soon: the server is full, starts, stops, or cannot be reached.
  var isPassing: Bool {
    guard kind == .cannotConnect || kind == .lost else { return false }
    guard let state = sqlState?.rawValue else { return !isFinal }
    return state == "53300" || state.hasPrefix("57P") || state.hasPrefix("08")
  }
}
#endif
