internal import CLinux
import Coroutine
import Glibc

/// A TCP or Unix stream socket that accepts connections.
///
/// Any number of coroutines may accept at once. Closed by ``close()``, and at the latest when the last reference goes.
public final class Listener: Sendable {
  /// How a listener is bound.
  public struct Options: Sendable {
    /// The number of connections that the system keeps until they are accepted; it may lower the number
    /// (net.core.somaxconn).
    public var backlog = 1024
    /// Whether several listeners may have this address, among which the system distributes connections.
    public var reusePort = false
    /// Whether the file of a Unix socket is removed: before the bind if nobody listens there any more, and by the
    /// close.
    public var unlinkPath = true
    /// Creates the default options.
    public init() {}
  }

  let socket: WatchedDescriptor
  private let path: UnixPath?
  /// The address that it is bound to, with the port that the system chose.
  public let address: SocketAddress

  private init(_ socket: WatchedDescriptor, _ path: UnixPath?, _ address: SocketAddress) {
    self.socket = socket
    self.path = path
    self.address = address
  }

  deinit { close() }

  /// Binds a socket to `address`, and listens.
  ///
  /// Never suspends; may be called anywhere. Port 0 lets the system choose one. A port whose last connections still
  /// linger (TIME_WAIT) can be bound again. ``SocketAddress/any(port:)`` serves IPv4 as well.
  ///
  /// - Throws: ``NetError``: `EADDRINUSE` if another socket has the address, `EACCES` if this user may not have it.
  public static func bind(_ address: SocketAddress, options: Options = .init()) throws -> Listener {
    do {
      return try bindOnce(address, options)
    } catch let error as NetError where address.isAny && error.code == EAFNOSUPPORT {
      return try bindOnce(SocketAddress(.ipv4(0, address.port ?? 0)), options)
    }
  }

  private static func bindOnce(_ address: SocketAddress, _ options: Options) throws -> Listener {
    if let network = Simulated.current {
      let (socket, bound) = try NetError.telling("binding", address) {
        try network.listen(at: address, backlog: options.backlog)
      }
      return Listener(socket, nil, bound)
    }
    let socket = try Socket.make(address, isStream: true, "binding")
    if address.family == AF_UNIX {
      // One socket has a path.
    } else {
      Socket.set(CLINUX_REUSE_ADDRESS, true, of: socket)
      if options.reusePort { Socket.set(CLINUX_REUSE_PORT, true, of: socket) }
      if address.family == AF_INET6 { Socket.set(CLINUX_V6_ONLY, !address.isAny, of: socket) }
      // Accepted sockets inherit it, which saves a system call for each.
      Socket.set(CLINUX_NO_DELAY, true, of: socket)
    }
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
  /// Suspends until there is one. Connections that the peer has given up meanwhile are skipped. If the coroutine is
  /// cancelled, it throws, and no connection is lost.
  ///
  /// - Throws: ``NetError``: `.closed` after a close, also one while it waits; `EMFILE` or `ENFILE` if there is no
  ///   descriptor left: the connection stays with the system, and a later call gets it.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func accept() throws -> Connection {
    while true {
      // The cancellation is checked first: after that, an accepted connection is returned.
      try co_checkCancelled()
      if let connection = try acceptNow() { return connection }
      try waitUntilAcceptable()
    }
  }

  /// Accepts a connection that is there; returns nil if there is none.
  ///
  /// Never suspends.
  func acceptNow() throws -> Connection? {
    if let simulated = socket.simulated { return try acceptNow(simulated) }
    var remote: SocketAddress?
    let number = try NetError.telling("accepting at", address) {
      try socket.attempt(.reading) { listener in
        while true {
          var number: Int32 = 0
          remote = SocketAddress.read { number = clinux_accept(listener, $0, $1) }
          if number >= 0 || !Self.isTransient(-number) { return .init(Int64(number)) }
        }
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
    let count = try NetError.telling("accepting at", address) {
      try socket.attempt(.reading) { .init(clinux_receive($0, &byte, 1)) }
    }
    guard count != nil, let next = listener.next() else { return nil }
    return Connection(next.socket, isTCP: address.family != AF_UNIX, local: address, remote: next.remote)
  }

  /// Suspends until `acceptNow` may find a connection.
  func waitUntilAcceptable() throws {
    try NetError.telling("accepting at", address) { try socket.wait(.reading) }
  }

  /// Whether an error belongs to a connection that has failed before it was accepted: accept(2).
  private static func isTransient(_ code: Int32) -> Bool {
    switch code {
    case ECONNABORTED, EPROTO, ENETDOWN, ENOPROTOOPT, EHOSTDOWN, ENONET, EHOSTUNREACH, ENETUNREACH, EINTR: true
    default: false
    }
  }

  /// Closes: connections that were not accepted are refused, and every coroutine that waits gets ``NetError/closed``.
  ///
  /// Never suspends; any thread, repeatedly. Accepted connections stay.
  public func close() {
    socket.close { _ in path?.remove() }
  }

  /// Whether ``close()`` was called.
  public var isClosed: Bool { socket.isClosed }
}
