#if Postgres
internal import CPostgres
import Coroutine

/// The one connection over which a pool listens, for all channels and listeners.
///
///   NONE --first listen--> CONNECTED --loss--> WAITING (50 ms, doubled up to 5 s) --> connects, listens, `gap`s -->
///   CONNECTED
///    ^                         | last listener stopped, or end
///    +-------------------------+
///
/// Invariants
///  1. libpq's connection is used under `using` alone, a lock of coroutines: by the reader after its wait, and by those
///     that listen. The reader waits for input without it.
///  2. A listener is in `listeners` before LISTEN is sent for it, and its `gap` follows after the server has
///     confirmed. So what is committed after the `gap` reaches it.
///  3. `reader` exists while there are listeners; a loss is found by it, and repaired by it.
final class Listener: Sendable {
  private struct State: Sendable {
    var listeners: [PostgresNotifications] = []
    var wire: Wire?
    var reader: Job<Void>?
    var isEnded = false
  }

  private let core: PoolCore
  private let using = FairMutex()
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
    try co_checkCancelled()
    if core.state.withLock({ $0.phase != .open }) { throw PoolCore.ended }
    let new = PostgresNotifications(channel, buffer: buffer) { [weak self] in self?.remove($0) }
    try using.withLock {
      let wire = try state.withLock { state in
        if state.isEnded { throw PoolCore.ended }
        state.listeners.append(new)
        return state.wire
      }
      do {
        if try wire == nil || !listenMore(wire, channel) {
          try connect(until: .now + core.options.acquireTimeout)
          // Of a connection that was lost, all may have missed some.
          if wire != nil { for each in state.withLock({ $0.listeners }) where each !== new { each.deliver(.gap) } }
        }
        new.deliver(.gap)
      } catch {
        state.withLock { $0.listeners.removeAll { $0 === new } }
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
      guard state.reader == nil, !state.isEnded else { return }
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
    for channel in Set(state.withLock { $0.listeners.map(\.channel) }).sorted() { try wire.listen(channel) }
    let isEnded = state.withLock { state in
      if state.isEnded { return true }
      isDropped = state.wire != nil
      state.wire = wire
      return false
    }
    if isEnded { throw PoolCore.ended }
  }

  // MARK: The reader

  /// Reads until the listener ends.
  ///
  /// Holds it only between two waits, so its last release ends the reader.
  private static func read(_ listener: () -> Listener?) {
    var pause = Duration.milliseconds(50)
    while !co_isCancelled {
      // Held over the wait, so that its descriptor stays open.
      guard let wire = listener()?.state.withLock({ $0.wire }) else { return }
      do {
        try wire.untilReadable()
        guard let me = listener() else { return }
        try me.using.withLock { try me.consume() }
        pause = .milliseconds(50)
      } catch {
        if co_isCancelled { return }
        while !co_isCancelled {
          do {
            try co_delay(pause)
            pause = min(pause * 2, .seconds(5))
            guard let me = listener() else { return }
            try me.using.withLock {
              try me.connect(until: .now + .seconds(5))
              for each in me.state.withLock({ $0.listeners }) { each.deliver(.gap) }
            }
            break
          } catch {}
        }
      }
    }
  }

  /// Reads what has come.
  ///
  /// The caller has `using`.
  private func consume() throws {
    guard let wire = state.withLock({ $0.wire }) else { return }
    if wire.isBroken || PQconsumeInput(wire.pg) == 0 { throw wire.lost() }
    deliver(wire)
    let needed = Set(state.withLock { $0.listeners.map(\.channel) })
    for channel in wire.channels.subtracting(needed).sorted() { try wire.unlisten(channel) }
  }

  private func deliver(_ wire: Wire) {
    while let notification = PQnotifies(wire.pg) {
      let channel = String(cString: notification.pointee.relname)
      let payload = String(cString: notification.pointee.extra)
      let sender = notification.pointee.be_pid
      PQfreemem(notification)
      for listener in state.withLock({ $0.listeners }) where listener.channel == channel {
        listener.deliver(.payload(payload, from: sender))
      }
    }
  }

  // MARK: The end

  /// The channel is left when the reader next wakes; until then its notifications are dropped.
  private func remove(_ listener: PostgresNotifications) {
    state.withLock { $0.listeners.removeAll { $0 === listener } }
  }

  /// Suspends until the reader has ended, after `end`.
  func untilEnded() throws { try state.withLock { $0.reader }?.untilEnded() }

  /// Ends all listeners and the connection.
  ///
  /// Any thread; never suspends.
  func end() {
    let (reader, listeners, wire) = state.withLock { state in
      state.isEnded = true
      defer { (state.listeners, state.wire) = ([], nil) }
      return (state.reader, state.listeners, state.wire)
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
  /// Suspends until the server has confirmed. The first notification is a `gap`.
  /// - Parameters:
  ///   - channel: The name, of at most 63 bytes.
  ///   - buffer: The number of notifications that wait for a slow listener; then it gets a `gap`.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func listen(_ channel: String, buffer: Int = 256) throws -> PostgresNotifications {
    try listener.listen(channel, buffer)
  }
}
#endif
