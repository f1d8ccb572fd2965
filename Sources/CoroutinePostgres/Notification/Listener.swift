#if Postgres
internal import CPostgres
import Coroutine

/// The one connection over which a pool listens, for all channels and listeners.
///
///   NONE --first listen--> CONNECTED --loss, no answer--> WAITING (50 ms, doubled up to 5 s) --> connects, listens,
///    ^                         |                             | `gap`s --> CONNECTED
///    +--last listener stopped, or released; end--------------+
///
/// Invariants
///  1. libpq's connection is used under `using` alone, a lock of coroutines: by the reader after its wait, and by those
///     that listen. The reader waits for input without it.
///  2. A listener is in `listeners` before LISTEN is sent for it, and its `gap` follows after the server has
///     confirmed. So what is committed after the `gap` reaches it.
///  3. `reader` exists while there are listeners; a loss is found by it, and repaired by it. It ends where it finds
///     none, and is forgotten in the same section of the lock: so a `listen` that comes then starts another one.
///  4. The last listener that goes takes the connection out under the lock, and shuts it down, which wakes the reader.
///     A `listen` has put its listener in before it looks for a connection, so it finds one that stays, or none.
/// Listeners are not kept alive: one that nobody can receive from any more is removed by its deinit.
///
/// A connection that says nothing is asked from time to time whether it lives: a network that drops it without a word
/// would otherwise leave it, since there is nothing to send whose answer could be missed.
final class Listener: Sendable {
  private struct State: Sendable {
    /// By their channels and their numbers.
    var listeners: [String: [Int: Weak]] = [:]
    var nextID = 0
    var wire: Wire?
    var reader: Job<Void>?
    var isEnded = false

    mutating func remove(_ channel: String, _ id: Int) {
      listeners[channel]?[id] = nil
      if listeners[channel]?.isEmpty == true { listeners[channel] = nil }
    }
  }
  private struct Weak: Sendable {
    weak var listener: PostgresNotifications?
  }

  private let core: PoolCore
  private let using = FairMutex().named("PostgresPool.listen")
  private let state = ThreadMutex(State())

  init(_ core: PoolCore) { self.core = core }

  func listen(_ channel: String, _ buffer: Int) throws -> PostgresNotifications {
    if core.options.isPooledByTransaction {
      throw PostgresError(.ended, "a pooler in transaction mode has no notifications: isPooledByTransaction is set")
    }
    if channel.utf8.count > 63 {
      // The server would cut it, and never notify it.
      throw PostgresError(.server, "the channel's name has more than 63 bytes", sqlState: .nameTooLong)
    }
    if channel.utf8.contains(0) {
      // LISTEN is text, which would end there.
      throw PostgresError(.decoding, "the channel's name has a zero byte; no name of a server has one")
    }
    try co_checkCancelled()
    if core.state.withLock({ $0.phase != .open }) { throw PoolCore.ended }
    let id = state.withLock { state in
      state.nextID += 1
      return state.nextID
    }
    let new = PostgresNotifications(channel, buffer: buffer) { [weak self] in self?.remove(channel, id) }
    try using.withLock {
      let wire = try state.withLock { state in
        if state.isEnded { throw PoolCore.ended }
        state.listeners[channel, default: [:]][id] = Weak(listener: new)
        return state.wire
      }
      do {
        if try wire == nil || !listenMore(wire, channel) {
          try connect(until: .now + core.options.acquireTimeout)
          // Of a connection that was lost, all may have missed some.
          if wire != nil { tellGap(but: new) }
        }
        new.deliver(.gap)
      } catch {
        remove(channel, id)
        throw error
      }
      startReader()
    }
    return new
  }

  /// Returns false if the connection was lost.
  private func listenMore(_ wire: Wire?, _ channel: String) throws -> Bool {
    guard let wire, !wire.isBroken else { return false }
    do { try wire.listen(channel) } catch let error as PostgresError where error.kind == .lost { return false }
    deliver(wire)
    return true
  }

  private func startReader() {
    state.withLock { state in
      guard state.reader == nil, !state.isEnded, !state.listeners.isEmpty else { return }
      state.reader = co_launch(name: "PostgresPool.listen") { [weak self] in Listener.read { self } }
    }
  }

  /// Connects, and listens to all channels.
  ///
  /// The caller has `using`.
  private func connect(until end: ContinuousClock.Instant) throws {
    let wire = try core.connect(until: end)
    var isDropped = true
    defer { if isDropped { core.state.withLock { $0.closed += 1 } } }
    for channel in state.withLock({ $0.listeners.keys.sorted() }) { try wire.listen(channel) }
    let isEnded = state.withLock { state in
      // The last listener may have gone meanwhile; then the connection goes as well.
      if state.isEnded || state.listeners.isEmpty { return state.isEnded }
      isDropped = state.wire != nil
      state.wire = wire
      return false
    }
    if isEnded { throw PoolCore.ended }
  }

  private func tellGap(but new: PostgresNotifications? = nil) {
    // In any order: a server is outside of worlds, and no listener waits for another.
    let all = state.withLock { $0.listeners.values.flatMap { $0.values.compactMap(\.listener) } }
    for each in all where each !== new { each.deliver(.gap) }
  }

  // MARK: The reader

  /// Reads until there are no listeners, or the listener ends.
  ///
  /// Holds it only between two waits, so its last release ends the reader.
  private static func read(_ listener: () -> Listener?) {
    var pause = Duration.milliseconds(50)
    while !co_isCancelled {
      // Held over the wait, so that its descriptor stays open.
      guard let (wire, heartbeat) = try? listener()?.toRead() else { return }
      do {
        let isSilent = try untilReadable(wire, atMost: heartbeat)
        guard let me = listener() else { return }
        try me.using.withLock { try me.consume(wire, asks: isSilent) }
        pause = .milliseconds(50)
      } catch {
        if co_isCancelled { return }
        while !co_isCancelled {
          do {
            try co_delay(pause)
            pause = min(pause * 2, .seconds(5))
            guard let me = listener() else { return }
            if try me.using.withLock({ try me.repair(wire) }) { break }
          } catch {}
        }
      }
    }
  }

  /// Suspends until there is input; returns true if there was none for as long.
  private static func untilReadable(_ wire: Wire, atMost heartbeat: Duration) throws -> Bool {
    do {
      try co_timeout(heartbeat) { try wire.untilReadable() }
      return false
    } catch is TimeoutError where !co_isCancelled { return true }
  }

  /// The connection to read; nil if there are no listeners.
  private func toRead() throws -> (Wire, Duration)? {
    while true {
      let (wire, isOver) = state.withLock { state -> (Wire?, Bool) in
        if state.isEnded || (state.wire == nil && state.listeners.isEmpty) {
          state.reader = nil
          return (nil, true)
        }
        return (state.wire, false)
      }
      if let wire { return (wire, core.options.heartbeat) }
      if isOver { return nil }
      // Somebody listens, and connects.
      try using.withLock {}
    }
  }

  /// Connects again in place of a connection that was lost; returns false if that is to be tried again.
  ///
  /// The caller has `using`.
  private func repair(_ lost: Wire) throws -> Bool {
    let isNeeded = state.withLock { $0.wire === lost && !$0.listeners.isEmpty }
    // Otherwise one that listens has repaired it, or the last listener has gone.
    guard isNeeded else { return true }
    try connect(until: .now + .seconds(5))
    tellGap()
    return true
  }

  /// Reads what has come, after a question if the server has been silent.
  ///
  /// The caller has `using`.
  private func consume(_ wire: Wire, asks: Bool) throws {
    let needed = try state.withLock { state in
      if state.wire !== wire { throw wire.lost() }
      // In any order: a server is outside of worlds, and no listener waits for another.
      return Set(state.listeners.keys)
    }
    if asks, let channel = wire.channels.first {
      // Nothing changes, since it listens already. The answer is a sign of life.
      try co_timeout(core.options.heartbeat / 2) { try wire.listen(channel) }
    } else if wire.isBroken || PQconsumeInput(wire.pg) == 0 {
      throw wire.lost()
    }
    deliver(wire)
    for channel in wire.channels.subtracting(needed).sorted() { try wire.unlisten(channel) }
  }

  private func deliver(_ wire: Wire) {
    while let notification = PQnotifies(wire.pg) {
      let channel = String(cString: notification.pointee.relname)
      let payload = String(cString: notification.pointee.extra)
      let sender = notification.pointee.be_pid
      PQfreemem(notification)
      // In any order: a server is outside of worlds, and no listener waits for another.
      let all = state.withLock { $0.listeners[channel]?.values.compactMap(\.listener) ?? [] }
      for listener in all { listener.deliver(.payload(payload, from: sender)) }
    }
  }

  // MARK: The end

  /// Removes a listener; without any, the connection ends.
  ///
  /// Its channel is left when the reader next wakes; until then its notifications are dropped. Any thread; never
  /// suspends.
  private func remove(_ channel: String, _ id: Int) {
    let unneeded = state.withLock { state -> Wire? in
      state.remove(channel, id)
      return state.listeners.isEmpty ? state.wire.take() : nil
    }
    guard let unneeded else { return }
    // Wakes the reader, which holds it.
    unneeded.shutDown()
    core.state.withLock { $0.closed += 1 }
  }

  /// Suspends until the reader has ended, after `end`.
  func untilEnded() throws { try state.withLock { $0.reader }?.untilEnded() }

  /// Ends all listeners and the connection.
  ///
  /// Any thread; never suspends.
  func end() {
    let (reader, listeners, wire) = state.withLock { state in
      state.isEnded = true
      defer { (state.listeners, state.wire) = ([:], nil) }
      // In any order: a server is outside of worlds, and no listener waits for another.
      return (state.reader, state.listeners.values.flatMap { $0.values.compactMap(\.listener) }, state.wire)
    }
    reader?.cancel()
    for listener in listeners { listener.stop() }
    if wire != nil { core.state.withLock { $0.closed += 1 } }
  }
}

extension Wire {
  func listen(_ channel: String) throws {
    try command("listen \(SQL.quoted(channel))")
    channels.insert(channel)
  }

  func unlisten(_ channel: String) throws {
    try command("unlisten \(SQL.quoted(channel))")
    channels.remove(channel)
  }
}

extension PostgresPool {
  /// Listens to the notifications of a channel; all channels over one connection of the pool's own.
  ///
  /// Asks the server.
  ///
  /// ```swift
  /// try db.listen("orders").forEach { notification in … }
  /// ```
  ///
  /// Suspends until the server has confirmed. The first notification is a `gap`. If the connection is silent for ten
  /// seconds, the server is asked whether it lives; without an answer within five, it counts as lost. The connection
  /// ends with the last listener: by ``PostgresNotifications/stop()``, or when nothing refers to it any more.
  /// - Parameters:
  ///   - channel: The name, of at most 63 bytes, none of them zero.
  ///   - buffer: The number of notifications that wait for a slow listener; then it gets a `gap`.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func listen(_ channel: String, buffer: Int = 256) throws -> PostgresNotifications {
    if memory != nil { throw Self.needsServer("notifications") }
    return try listener.listen(channel, buffer)
  }
}
#endif
