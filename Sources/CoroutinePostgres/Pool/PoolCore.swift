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
///  2. Every connection is idle, in one use, or unowned. An unowned one closes with its last reference.
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
  /// Connections that are given back, for those that cannot get one of their own: the server has no more of them.
  private let spare: Channel<Wire>
  /// How many may wait for a spare one; a hint.
  private let seekers = Atomic<Int>(0)

  init(_ server: Server, _ options: PostgresPool.Options) {
    self.server = server
    self.options = options
    permits = FairSemaphore(min(max(1, options.connections.upperBound), .max / 4), limit: .unbounded)
      .named("PostgresPool.connections")
    let state = self.state
    spare = Channel(.rendezvous) { _ in state.withLock { $0.closed += 1 } }
    settings = Wire.Settings(
      cancelTimeout: options.cancelTimeout,
      statementCache: options.statementCache,
      isPooledByTransaction: options.isPooledByTransaction,
      statementTimeout: options.statementTimeout,
      idleInTransactionTimeout: options.idleInTransactionTimeout,
      maxLifetime: options.maxLifetime,
      password: options.password,
      onNotice: options.onNotice,
      onCancel: { state.withLock { $0.cancelled += 1 } }
    )
  }

  static let ended = PostgresError(.ended, "the pool was closed")

  /// Runs `body` with a connection that no other coroutine uses.
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
      let wire = try takeIdle() ?? connect(until: start + options.acquireTimeout, orSpare: true)
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
  ///
  /// Between two attempts it may take a connection that others have given back, in the order of asking. Otherwise those
  /// that have one would pass it on among themselves.
  func connect(until end: ContinuousClock.Instant, orSpare: Bool = false) throws -> Wire {
    var pause = Duration.milliseconds(20)
    var last: PostgresError?
    while true {
      let left = end - .now
      do {
        guard left > .zero else { throw TimeoutError() }
        let wire = try co_timeout(left) { try Wire.connect(to: server, settings: settings, within: left) }
        state.withLock { $0.opened += 1 }
        return wire
      } catch is TimeoutError where !co_isCancelled {
        throw last ?? PostgresError(.cannotConnect, "the server has not answered within \(options.acquireTimeout)")
      } catch let error as PostgresError {
        last = error
        guard error.isPassing, ContinuousClock.now + pause < end else { throw error }
      }
      if !orSpare { try co_delay(pause) } else if let wire = try waitForSpare(pause) { return wire }
      if state.withLock({ $0.phase != .open }) { throw Self.ended }
      pause = min(pause * 2, .milliseconds(500))
    }
  }

  private func waitForSpare(_ longest: Duration) throws -> Wire? {
    seekers.add(1, ordering: .relaxed)
    defer { seekers.subtract(1, ordering: .relaxed) }
    if let wire = takeIdle() { return wire }
    return try co_select {
      spare.onReceive { $0 }
      SelectCase.onTimeout(longest) { nil }
    }
  }

  // MARK: Release

  private func release(_ wire: Wire, _ use: Int) {
    // An abandoned one is not even looked at.
    let isAbandoned = wire.isAbandoned.load(ordering: .acquiring)
    if !isAbandoned, wire.isChanged, !wire.isBroken, wire.isIdle { wire.reset() }
    let now = ContinuousClock.now
    let isMisplaced = !isAbandoned && wire.isMisplaced
    let isBad = isAbandoned || wire.isBroken || isMisplaced || !wire.isIdle
    let isUsable = !isBad && now - wire.born < wire.lifetime
    if isUsable { wire.idleSince = now }
    if isUsable, seekers.load(ordering: .relaxed) > 0 {
      state.withLock { $0.uses[use]?.wire = nil }
      if case .sent = spare.trySend(wire) { return endUse(use) }
    }
    var others: [Wire] = []
    let startsReaper = state.withLock { state -> Bool in
      state.uses[use]?.wire = nil
      if isMisplaced {
        // They lead to the same server.
        swap(&others, &state.idle)
        state.closed += others.count
      }
      guard isUsable, state.phase == .open else {
        state.closed += 1
        if isBad { state.discarded += 1 }
        return false
      }
      state.idle.append(wire)
      defer { state.hasReaper = true }
      return !state.hasReaper
    }
    _ = consume others
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

// MARK: - State

/// What the lock of a pool protects.
///
/// Pure: no call waits, connects or closes.
struct PoolState: Sendable {
  /// A connection that was handed out, or is being made for the coroutine that asked.
  struct Use: Sendable {
    var since: ContinuousClock.Instant
    var holder: String
    var wire: Wire?
  }

  enum Phase { case open, closing, closed }

  var phase = Phase.open
  /// The connection that was used last is taken first, so that those above the need become old.
  var idle: [Wire] = []
  var uses: [Int: Use] = [:]
  var waits: [Int: ContinuousClock.Instant] = [:]
  /// Who waits for the last use to end.
  var closers: [Resumer<Void>] = []
  var nextID = 0
  var opened = 0
  var closed = 0
  var discarded = 0
  var cancelled = 0
  /// Whether a coroutine closes old connections.
  var hasReaper = false
  var reaper: Job<Void>?

  mutating func newID() -> Int {
    nextID += 1
    return nextID
  }

  /// What a pool says of those that hold its connections.
  func holders(at now: ContinuousClock.Instant) -> String {
    let all = uses.values.sorted { $0.since < $1.since }
    let some = all.prefix(8).map { "\($0.holder) for \(now - $0.since)" }.joined(separator: ", ")
    return all.count > 8 ? some + ", and \(all.count - 8) more" : some
  }

  /// Removes idle connections that are too old, but keeps `least` of those that have merely been idle.
  mutating func takeOld(at now: ContinuousClock.Instant, maxIdle: Duration, least: Int) -> [Wire] {
    var old: [Wire] = []
    // The first ones have been idle for the longest time.
    var kept: [Wire] = []
    var count = idle.count + uses.count
    for wire in idle {
      let isTooOld = now - wire.born > wire.lifetime
      let isUnneeded = now - wire.idleSince > maxIdle && count > least
      if isTooOld || isUnneeded {
        old.append(wire)
        count -= 1
      } else {
        kept.append(wire)
      }
    }
    idle = kept
    closed += old.count
    return old
  }
}

// MARK: - Waiting for a connection

// The wait for a permit. Its functions are not inlined, so that the frames of a coroutine that waits are small: many
// wait, and each touches as much of its stack.

extension PoolCore {
  /// Says who holds a connection, or has one made; nil once the pool is closed.
  @inline(never)
  func beginUse() -> Int? {
    let holder = RunningCoroutine.label.map { $0.name ?? "coroutine \($0.id)" } ?? "a coroutine"
    return state.withLock { state -> Int? in
      guard state.phase == .open else { return nil }
      let id = state.newID()
      state.uses[id] = .init(since: .now, holder: holder, wire: nil)
      return id
    }
  }

  @inline(never)
  func waitForPermit(_ start: ContinuousClock.Instant) throws {
    let id = beginWait(start)
    defer { endWait(id) }
    do { try co_timeout(options.acquireTimeout) { try permits.acquire() } } catch { throw failure(of: error) }
  }

  @inline(never)
  private func beginWait(_ start: ContinuousClock.Instant) -> Int {
    state.withLock { state in
      let id = state.newID()
      state.waits[id] = start
      return id
    }
  }

  @inline(never)
  private func endWait(_ id: Int) { state.withLock { _ = $0.waits.removeValue(forKey: id) } }

  @inline(never)
  private func failure(of error: any Error) -> any Error {
    // It may be the reason of a cancellation as well.
    guard error is TimeoutError, !co_isCancelled else { return error }
    let holders = state.withLock { $0.holders(at: .now) }
    return PostgresError(
      .poolTimeout,
      "no connection became free within \(options.acquireTimeout); they are held by: \(holders)"
    )
  }
}

// MARK: - Closing

extension PostgresPool {
  /// Lets no statement begin (`.ended`), waits for those that run, at most `drain`, cancels them, and closes all.
  ///
  /// Suspends until the last one has ended. If cancelled, it closes at once, and throws. A transaction that runs may
  /// finish within `drain`; after that the server is told to stop its statement, and after `cancelTimeout` its
  /// connection is shut down. The last release of a pool that was not closed closes what is idle.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func close(drain: Duration = .seconds(10)) throws {
    // Outside of a coroutine it throws before anything is closed; a cancelled one closes first.
    do { try co_checkCancelled() } catch { if !co_isCancelled { throw error } }
    closing.fulfill(())
    defer {
      listener.end()
      pipelines.end()
      _ = try? closeReserve()
    }
    try core.close(drain: drain, pipelines.untilIdle)
    listener.end()
    pipelines.end()
    do {
      try co_timeout(core.options.cancelTimeout) {
        try listener.untilEnded()
        try pipelines.untilEnded()
      }
    } catch is TimeoutError where !co_isCancelled {}
  }
}

extension Job<Void> {
  /// Suspends until the job has ended, in whatever way: one that was cancelled before it began has failed.
  func untilEnded() throws {
    do { try join() } catch { try co_checkCancelled() }
  }
}

extension PoolCore {
  /// Closes all; `others` waits for statements that are not in `uses`.
  func close(drain: Duration, _ others: () throws -> Void) throws {
    let idle = state.withLock { state in
      if state.phase == .open { state.phase = .closing }
      defer { state.idle = [] }
      state.closed += state.idle.count
      return state.idle
    }
    _ = consume idle
    state.withLock { $0.reaper }?.cancel()
    // Every waiter gets one, and finds the phase.
    permits.release(1 << 20)
    defer { state.withLock { $0.phase = .closed } }
    do {
      do {
        try co_timeout(drain) {
          try waitForUses()
          try others()
        }
        return
      } catch is TimeoutError where !co_isCancelled {}
      cancelUses()
      do {
        try co_timeout(options.cancelTimeout) { try waitForUses() }
        return
      } catch is TimeoutError where !co_isCancelled {}
      shutDownUses()
      _ = try? co_timeout(options.cancelTimeout) { try waitForUses() }
    } catch {
      shutDownUses()
      throw error
    }
  }

  private func waitForUses() throws {
    try co_suspend { (done: Resumer<Void>) in
      let isDone = state.withLock { state -> Bool in
        if state.uses.isEmpty { return true }
        state.closers.append(done)
        return false
      }
      if isDone { done.resume(()) }
    }
  }

  private func cancelUses() {
    let handles = state.withLock { state in state.uses.sorted { $0.key < $1.key }.compactMap(\.value.wire?.cancel) }
    for handle in handles { co_launch(name: "PostgresPool.close") { try? handle.request() } }
  }

  /// Under the lock, because a connection that is in use there is not closed meanwhile.
  private func shutDownUses() {
    state.withLock { state in for (_, use) in state.uses.sorted(by: { $0.key < $1.key }) { use.wire?.shutDown() } }
  }
}
#endif
