internal import CLinux
import Coroutine
import Glibc
import Synchronization

/// A TCP or Unix stream socket that accepts connections.
///
/// Any number of coroutines may accept at once. The listener is closed by ``close()``, at the latest when its last
/// reference is released.
public final class Listener: Sendable {
  /// The options of binding a listener.
  public struct Options: Sendable {
    /// The number of connections that the system queues until they are accepted.
    ///
    /// The system may lower the number (net.core.somaxconn).
    public var backlog = 1024
    /// Whether several listeners may have this address (SO_REUSEPORT).
    ///
    /// The system distributes the connections among them.
    public var reusePort = false
    /// Whether the file of a Unix socket is removed: by the close, and before the bind if no process listens there.
    ///
    /// The close removes it in the process that bound it; a daemon binds after its forks.
    public var unlinkPath = true
    /// The options of the socket before the bind; accepted connections inherit them.
    ///
    /// Of these, ``SocketOptions/source``, ``SocketOptions/multicast`` and ``SocketOptions/broadcast`` have no meaning
    /// for a listener.
    public var socket = SocketOptions()
    /// Creates the default options.
    public init() {}
  }

  let socket: WatchedDescriptor
  private let path: UnixPath?
  /// For a listener that must answer when the process has no descriptor left.
  private let reserve = ReserveDescriptors()
  /// The address that it is bound to, with the port that the system chose.
  public let address: SocketAddress

  init(_ socket: WatchedDescriptor, _ path: UnixPath?, _ address: SocketAddress) {
    self.socket = socket
    self.path = path
    self.address = address
  }

  deinit { close() }

  /// Keeps this many descriptors for the time when the process has none left: a connection is accepted in their place.
  ///
  /// The next call, and each accept, take them again; another thread may be faster, and have the free ones. Never
  /// suspends; any thread. Those of the poller are taken too: a first wait may come when none is left.
  package func keepInReserve(_ count: Int) throws(NetError) {
    do { try WatchedDescriptor.startPolling() } catch { throw NetError(code: error.code, "listening at", address) }
    reserve.take(count)
  }

  /// Takes again what accepting has used up.
  package func refillReserve() { reserve.take(nil) }

  /// Binds a socket to `address`, and listens.
  ///
  /// Never suspends; any thread. With port 0 the system chooses the port. A port that has connections in TIME_WAIT can
  /// be bound again. ``SocketAddress/any(port:)`` serves IPv4 as well. If another process replaces a socket in the same
  /// directory, the call may block until that has ended, half a second at most.
  ///
  /// - Throws: ``NetError``: `EADDRINUSE` if another socket has the address, `EACCES` if this user may not have it.
  public static func bind(_ address: SocketAddress, options: Options = .init()) throws(NetError) -> Listener {
    do {
      return try bindOnce(address, options)
    } catch let error where address.isAny && error.code == EAFNOSUPPORT {
      return try bindOnce(SocketAddress(.ipv4(0, address.port ?? 0)), options)
    }
  }

  private static func bindOnce(_ address: SocketAddress, _ options: Options) throws(NetError) -> Listener {
    if let network = Simulated.current {
      do {
        let (socket, bound) = try network.listen(at: address, backlog: options.backlog)
        return Listener(socket, nil, bound)
      } catch {
        throw NetError(of: error, "binding", address)
      }
    }
    let socket = try Socket.make(address, isStream: true, "binding")
    if address.family == AF_UNIX {
      // A path belongs to one socket, and has no options.
    } else {
      Socket.set(CLINUX_REUSE_ADDRESS, true, of: socket)
      if options.reusePort { Socket.set(CLINUX_REUSE_PORT, true, of: socket) }
      if address.family == AF_INET6 { Socket.set(CLINUX_V6_ONLY, !address.isAny, of: socket) }
    }
    // Accepted sockets inherit the options, which saves system calls for each of them.
    try options.socket.apply(to: socket.number, address, isStream: true)
    let path = try Socket.bind(socket, address, unlinks: options.unlinkPath)
    let backlog = Int32(clamping: max(0, options.backlog))
    guard listen(socket.number, backlog) == 0 else {
      let code = errno
      path?.remove()
      throw NetError(code: code, "listening at", address)
    }
    return Listener(socket, path, SocketAddress.local(of: socket.number) ?? address)
  }

  /// Returns the next connection.
  ///
  /// Suspends until a peer connects. Connections that the peer has closed before they are accepted are skipped. If the
  /// coroutine is cancelled, it throws at once, and no connection is consumed.
  ///
  /// - Throws: ``NetError``: `.closed` after a close, also if the listener is closed while it waits; `EMFILE` or
  ///   `ENFILE` if no descriptor is free: the connection stays in the backlog, and a later call accepts it; `EPERM` and
  ///   others if the system refuses one connection after the other, 128 times. The cancellation error.
  ///   `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func accept() throws -> Connection {
    while true {
      // The cancellation is checked first: after that, an accepted connection is returned. A coroutine that never has
      // to wait here gives way as at any wait.
      try socket.beginOperation()
      if let connection = try acceptNow() { return connection }
      try waitUntilAcceptable()
    }
  }

  /// Accepts a connection of the backlog; returns nil if the backlog is empty.
  ///
  /// Never suspends.
  func acceptNow() throws -> Connection? {
    reserve.take(nil)
    if let simulated = socket.simulated { return try acceptNow(simulated) }
    var remote: SocketAddress?
    let number = try NetError.translating("accepting at", address) {
      try socket.attempt(.reading) { listener in
        var number: Int32 = 0
        for _ in 0..<Self.mostRefusals {
          remote = SocketAddress.read { number = clinux_accept(listener, $0, $1) }
          if number == -EMFILE || number == -ENFILE, reserve.giveUp() { continue }
          if number >= 0 || !Self.isTransient(-number) { break }
        }
        return .init(Int64(number))
      }
    }
    guard let number else { return nil }
    return try Connection(
      accepted: Int32(number),
      isTCP: address.family != AF_UNIX,
      by: address,
      remote ?? SocketAddress(.unix([]))
    )
  }

  private func acceptNow(_ simulated: any SimulatedEnd) throws -> Connection? {
    guard let listener = simulated as? any SimulatedListener else { return nil }
    var byte: UInt8 = 0
    let count = try NetError.translating("accepting at", address) {
      try socket.attempt(.reading) { .init(clinux_receive($0, &byte, 1)) }
    }
    guard count != nil, let next = listener.next() else { return nil }
    return Connection(next.socket, isTCP: address.family != AF_UNIX, local: address, remote: next.remote)
  }

  /// Suspends until the backlog may have a connection.
  func waitUntilAcceptable() throws {
    try NetError.translating("accepting at", address) { try socket.wait(.reading) }
  }

  /// Suspends until the backlog has a connection, which stays there.
  func waitForConnection() throws {
    try NetError.translating("accepting at", address) {
      _ = try socket.perform(.reading) { .init(Socket.isReadable($0) ? 1 : -Int64(EAGAIN)) }
    }
  }

  /// The number of connections in a row that may fail before they are accepted.
  ///
  /// After that the error is thrown: if the system refuses the call itself (seccomp, for example, with EPERM), it takes
  /// no connection from the backlog, and repeating would never end.
  private static var mostRefusals: Int { 128 }

  /// Whether an error of accept(2) belongs to a connection that has failed before it was accepted.
  static func isTransient(_ code: Int32) -> Bool {
    switch code {
    case ECONNABORTED, EPROTO, ENETDOWN, ENOPROTOOPT, EHOSTDOWN, ENONET, EHOSTUNREACH, ENETUNREACH: true
    // A firewall has refused the connection; the connection's protocol does not have an option of the listener.
    case EPERM, EOPNOTSUPP: true
    default: false
    }
  }

  /// Closes the listener: resets the connections of the backlog; every waiting coroutine gets ``NetError/closed``.
  ///
  /// Never suspends; any thread. A second call has no effect. Accepted connections stay open.
  public func close() {
    socket.close { _ in path?.remove() }
    _ = reserve.giveUp(forGood: true)
  }

  /// Calls `body` with the descriptor, for options that this class does not offer; with -1 after a close.
  ///
  /// The same rules hold as for that of a connection: ``Connection/withUnsafeDescriptor(_:)``.
  public func withUnsafeDescriptor<R, Failure>(_ body: (Int32) throws(Failure) -> R) throws(Failure) -> R {
    guard socket.enter() else { return try body(-1) }
    defer { socket.leave() }
    return try body(socket.number)
  }

  /// Whether ``close()`` was called.
  public var isClosed: Bool { socket.isClosed }
}

/// Descriptors that are kept so that they can be given up.
///
/// `wanted` and `kept` are accessed under the lock. Without a reserve, the wanted number is 0 for ever, and is read
/// without it.
private final class ReserveDescriptors: Sendable {
  private struct State {
    var wanted = 0
    var kept: [Int32] = []
  }

  private let state = ThreadMutex(State())
  private let isWanted = Atomic<Bool>(false)

  /// Opens what is missing; `wanted` sets the number.
  func take(_ wanted: Int?) {
    if let wanted { isWanted.store(wanted > 0, ordering: .relaxed) }
    // One load for the listeners that keep none.
    guard isWanted.load(ordering: .relaxed) else { return }
    state.withLock { state in
      if let wanted { state.wanted = wanted }
      while state.kept.count < state.wanted {
        let number = clinux_above_standard(open("/dev/null", O_RDONLY | O_CLOEXEC))
        guard number >= 0 else { return }
        state.kept.append(number)
      }
    }
  }

  /// Closes what is kept; returns whether there was any.
  func giveUp(forGood: Bool = false) -> Bool {
    guard isWanted.load(ordering: .relaxed) else { return false }
    return state.withLock { state in
      if forGood { state.wanted = 0 }
      for number in state.kept { Glibc.close(number) }
      defer { state.kept = [] }
      return !state.kept.isEmpty
    }
  }
}
