#if HTTP
import Coroutine
import CoroutineNet
import Synchronization

// The connections of a client that are not used, by origin.
//
// Invariants, under the lock of `state`
//  1. A connection is in the pool, or in one response, or in one exchange.
//  2. A host is in the table while a request has a permit of it, or waits for one. So of a host that is not asked any
//     more, nothing is left but its unused connections, until they are closed; and all requests of a host that overlap
//     count together.
//  3. The latest one is used first, so the others can get old and be closed: by the next request of the client,
//     because a client has no coroutine of its own.
//  3. Those that are closed together are closed in the order of their origins' names: a world repeats a run.

final class ClientPool: Sendable {
  private struct State {
    var idle: [Origin: [ClientConnection]] = [:]
    var hosts: [Origin: Host] = [:]
    var isClosed = false
    var swept = co_now
  }

  private struct Host {
    let permits: FairSemaphore
    /// The requests that hold or await a permit.
    var users = 0
  }

  // Not shared: which of the unused connections a request gets does not show.
  private let state = ThreadMutex(State())
  private let mostOfHost: Int
  private let idle: Duration

  init(mostOfHost: Int, idle: Duration) {
    // A semaphore counts no further.
    self.mostOfHost = min(max(1, mostOfHost), .max / 2)
    // A time of longer ago than the clock has would overflow.
    self.idle = min(max(.zero, idle), .seconds(1 << 32))
  }

  /// The right to one connection to a host; ends with `release`, at the latest with its last reference.
  final class Permit: Sendable {
    let origin: Origin
    let pool: ClientPool
    private let permits: FairSemaphore
    private let isHeld = Atomic<Bool>(true)

    init(_ origin: Origin, _ pool: ClientPool, _ permits: FairSemaphore) {
      self.origin = origin
      self.pool = pool
      self.permits = permits
    }

    deinit { release() }

    func release() {
      guard isHeld.exchange(false, ordering: .relaxed) else { return }
      permits.release()
      pool.leave(origin)
    }
  }

  func acquire(_ origin: Origin) throws -> Permit {
    let permits = state.withLock { state in
      var host = state.hosts[origin] ?? Host(permits: FairSemaphore(mostOfHost))
      host.users += 1
      state.hosts[origin] = host
      return host.permits
    }
    do { try permits.acquire() } catch {
      leave(origin)
      throw error
    }
    return Permit(origin, self, permits)
  }

  private func leave(_ origin: Origin) {
    state.withLock { state in
      state.hosts[origin]?.users -= 1
      if state.hosts[origin]?.users == 0 { state.hosts[origin] = nil }
    }
  }

  /// The hosts of which something is kept.
  ///
  /// In any order: they are counted.
  var hostCount: Int { state.withLock { Set($0.hosts.keys).union($0.idle.keys).count } }

  /// Returns the connection that was used last, unless the server has closed it, or has sent what nobody asked for.
  func take(_ origin: Origin) -> ClientConnection? {
    let now = co_now
    let limit = now - idle
    while true {
      let (found, old): (ClientConnection?, [ClientConnection]) = state.withLock { state in
        let old = now - state.swept < idle / 4 ? [] : Self.removeOld(from: &state, limit, now)
        let found = state.idle[origin]?.popLast()
        if state.idle[origin]?.isEmpty == true { state.idle[origin] = nil }
        return (found, old)
      }
      for connection in old { connection.close() }
      guard let found else { return nil }
      if found.idleSince >= limit, found.isFresh() { return found }
      found.close()
    }
  }

  /// Some times in each limit, because it visits all connections.
  private static func removeOld(
    from state: inout State,
    _ limit: CoroutineClock.Instant,
    _ now: CoroutineClock.Instant
  ) -> [ClientConnection] {
    state.swept = now
    var old: [ClientConnection] = []
    for (origin, connections) in inOrder(state.idle) {
      // The latest ones are at the end.
      let count = connections.prefix { $0.idleSince < limit }.count
      old += connections[..<count]
      state.idle[origin] = count == connections.count ? nil : Array(connections[count...])
    }
    return old
  }

  private static func inOrder(
    _ idle: [Origin: [ClientConnection]]
  ) -> [(key: Origin, value: [ClientConnection])] {
    idle.sorted { ($0.key.authority, $0.key.scheme) < ($1.key.authority, $1.key.scheme) }
  }

  func keep(_ connection: ClientConnection, _ origin: Origin) {
    connection.idleSince = co_now
    let isKept = state.withLock { state in
      if state.isClosed { return false }
      state.idle[origin, default: []].append(connection)
      return true
    }
    if !isKept { connection.close() }
  }

  func close() {
    state.withLock { $0.isClosed = true }
    closeUnused()
  }

  /// Returns whether there was one.
  @discardableResult
  func closeUnused() -> Bool {
    let all = state.withLock { state in
      defer { state.idle = [:] }
      return Self.inOrder(state.idle).flatMap(\.value)
    }
    for connection in all { connection.close() }
    return !all.isEmpty
  }
}
#endif
