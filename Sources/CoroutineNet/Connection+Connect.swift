internal import CLinux
import Coroutine
import Glibc

extension Connection {
  /// Connects to an address.
  ///
  /// Suspends until the peer accepts or refuses, or until the system times out: for TCP after about two minutes. Use
  /// `co_timeout` for less. If the coroutine is cancelled, it throws at once, and the socket is closed.
  ///
  /// - Throws: ``NetError``: `ECONNREFUSED`, also if the system has connected the socket with itself; `ETIMEDOUT`,
  ///   `ENETUNREACH`, and for a Unix socket `ENOENT`. The cancellation error. `CoroutineError.notInCoroutine` outside a
  ///   coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func connect(to address: SocketAddress) throws -> Connection {
    try connect(to: address, options: SocketOptions())
  }

  /// Connects to an address, with options that are set before.
  ///
  /// In all other respects it behaves as ``connect(to:)`` does.
  ///
  /// - Throws: The errors of ``connect(to:)``. ``NetError`` with the error of an option that the system refuses, and
  ///   with that of the bind to ``SocketOptions/source``: `EADDRNOTAVAIL` if this machine does not have the address,
  ///   `EADDRINUSE` if another socket has it, `EAFNOSUPPORT` or `EINVAL` if it is of another family.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func connect(to address: SocketAddress, options: SocketOptions) throws -> Connection {
    let operation = "connecting to"
    try co_checkCancelled()
    let isTCP = address.family != AF_UNIX
    if let network = Simulated.current {
      if let source = options.source { throw NetError(.notSimulated, code: EOPNOTSUPP, "connecting from", source) }
      let ends = try NetError.translating(operation, address) { try network.connect(to: address) }
      return Connection(ends.socket, isTCP: isTCP, local: ends.local, remote: ends.remote)
    }
    let socket = try Socket.make(address, isStream: true, operation)
    try options.apply(to: socket.number, address, isStream: true)
    try options.bindSource(socket, for: address)
    return try connect(socket, to: address, operation)
  }

  /// Connects a new socket, and returns its connection.
  ///
  /// If nothing listens at a local port, the system may choose that port for this end, and then TCP connects the socket
  /// with itself. Only the system's own two addresses show that. The address that was asked for may be another one:
  /// 0.0.0.0 and [::] connect to the loopback, and ::ffff:127.0.0.1 is 127.0.0.1.
  static func connect(
    _ socket: WatchedDescriptor,
    to address: SocketAddress,
    _ operation: String
  ) throws -> Connection {
    let isTCP = address.family != AF_UNIX
    try begin(socket, address, operation)
    let local = SocketAddress.local(of: socket.number) ?? SocketAddress(.unix([]))
    // Nil if the peer has reset the connection in the meantime; the first read reports that.
    let remote = SocketAddress.remote(of: socket.number) ?? address.canonical
    if isTCP, local == remote { throw NetError(code: ECONNREFUSED, operation, address) }
    return Connection(socket, isTCP: isTCP, local: local, remote: remote)
  }

  private static func begin(_ socket: WatchedDescriptor, _ address: SocketAddress, _ operation: String) throws {
    var pause: Duration = .milliseconds(1)
    while true {
      let code = address.withSystem {
        Glibc.connect(socket.number, $0.assumingMemoryBound(to: sockaddr.self), $1) == 0 ? 0 : errno
      }
      switch code {
      case 0: return
      case EINPROGRESS, EINTR: return try complete(socket, address, operation)
      case EAGAIN where address.family == AF_UNIX:
        // The listener's backlog is full. The kernel does not report when that changes.
        try co_delay(pause)
        pause = min(pause * 2, .milliseconds(50))
      default: throw NetError(code: code, operation, address)
      }
    }
  }

  /// Suspends until a pending attempt has succeeded or failed.
  private static func complete(_ socket: WatchedDescriptor, _ address: SocketAddress, _ operation: String) throws {
    try NetError.translating(operation, address) {
      _ = try socket.perform(.writing) { number in
        let code = clinux_pending_error(number)
        if code != 0 { return .init(-Int64(code)) }
        return .init(SocketAddress.remote(of: number) == nil ? -Int64(EAGAIN) : 0)
      }
    }
  }

  /// Connects to a host by its name.
  ///
  /// Suspends. The name is resolved by ``SocketAddress/resolve(_:port:)``. Then the addresses are tried, IPv6 and IPv4
  /// alternately, beginning with the family that the system prefers. An attempt begins 250 ms after the previous one,
  /// or as soon as an attempt has failed. The first success is returned. The other attempts are cancelled, and a
  /// connection that one of them has made nevertheless is closed. If the coroutine is cancelled, it throws at once
  /// during the lookup; after that, it cancels every attempt, and throws when they have ended.
  ///
  /// Of RFC 8305 ("happy eyeballs") these parts are implemented: interlacing the families (section 4, with the system's
  /// order within a family, RFC 6724), and staggered attempts with a fixed delay (section 5). These are not: separate
  /// queries for IPv4 and IPv6 whose answers are used as they arrive (section 3), a delay that is derived from measured
  /// round trips (section 5), and the use of earlier results (section 4).
  ///
  /// - Parameters:
  ///   - host: The name, or a literal address.
  ///   - port: The port.
  ///   - options: The options of the sockets.
  ///   - isAllowed: Decides for each resolved address, in its ``SocketAddress/canonical`` form, whether it may be
  ///     connected to. A program that connects where strangers tell it to refuses the addresses of its own network
  ///     here, also 0.0.0.0 and ::, which lead to this machine: a check of the name comes too early, because the name
  ///     may have another address at the next lookup.
  /// - Throws: The ``NetError`` of the first address if all attempts fail, or of the lookup; `EACCES` if no address is
  ///   allowed. The cancellation error. `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func connect(
    host: String,
    port: UInt16,
    options: SocketOptions = SocketOptions(),
    isAllowed: (SocketAddress) -> Bool = { _ in true }
  ) throws -> Connection {
    let found = try SocketAddress.resolve(host, port: port)
    // For the kernel, ::ffff:127.0.0.1 is 127.0.0.1, so a list has to hold for both.
    let addresses = found.filter { isAllowed($0.canonical) }
    if addresses.isEmpty { throw NetError(.notAllowed(host), code: EACCES, "connecting to", found[0]) }
    if addresses.count == 1 { return try connect(to: addresses[0], options: options) }
    return try ConnectRace.first(of: ConnectRace.alternatingFamilies(addresses), apart: .milliseconds(250)) {
      try connect(to: $0, options: options)
    }
  }
}
