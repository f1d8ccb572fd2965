internal import CLinux
import Coroutine
import Glibc

extension Connection {
  /// Connects to an address.
  ///
  /// Suspends until the peer has accepted or refused, or the system gives up, for TCP after about two minutes: use
  /// `co_timeout(_:_:)`. If the coroutine is cancelled, it throws at once, and the attempt is given up.
  ///
  /// - Throws: ``NetError``: `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`, for a Unix socket `ENOENT`.
  ///   `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func connect(to address: SocketAddress) throws -> Connection {
    let operation = "connecting to"
    try co_checkCancelled()
    let isTCP = address.family != AF_UNIX
    if let network = Simulated.current {
      let (socket, local) = try NetError.telling(operation, address) { try network.connect(to: address) }
      return Connection(socket, isTCP: isTCP, local: local, remote: address)
    }
    let socket = try Socket.make(address, isStream: true, operation)
    if isTCP { Socket.set(CLINUX_NO_DELAY, true, of: socket) }
    try begin(socket, address, operation)
    let local = SocketAddress.local(of: socket.number) ?? SocketAddress(.unix([]))
    // A port that the system chose for this end may be the very port that nobody listens at: TCP then connects the
    // socket with itself.
    if isTCP, local == address { throw NetError(code: ECONNREFUSED, operation, address) }
    return Connection(socket, isTCP: isTCP, local: local, remote: address)
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
        // The listener has too many connections that it has not accepted. The kernel does not tell when that changes.
        try co_delay(pause)
        pause = min(pause * 2, .milliseconds(50))
      default: throw NetError(code: code, operation, address)
      }
    }
  }

  /// Suspends until an attempt that is under way has succeeded or failed.
  private static func complete(_ socket: WatchedDescriptor, _ address: SocketAddress, _ operation: String) throws {
    try NetError.telling(operation, address) {
      _ = try socket.perform(.writing) { number in
        let code = clinux_pending_error(number)
        if code != 0 { return .init(-Int64(code)) }
        return .init(SocketAddress.remote(of: number) == nil ? -Int64(EAGAIN) : 0)
      }
    }
  }

  /// Connects to a host by its name.
  ///
  /// Suspends: the name is looked up on the blocking pool (``SocketAddress/resolve(_:port:)``). The addresses are then
  /// tried, IPv6 and IPv4 in turn, beginning with the kind that the system prefers. The next attempt begins 250 ms
  /// after the one before, or as soon as that has failed. The first success wins, and the other attempts are given up
  /// (RFC 8305). If the coroutine is cancelled, it throws at once, and every attempt is given up.
  ///
  /// - Throws: The ``NetError`` of the first address if none accepts, or of the lookup.
  ///   `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func connect(host: String, port: UInt16) throws -> Connection {
    let addresses = try SocketAddress.resolve(host, port: port)
    if addresses.count == 1 { return try connect(to: addresses[0]) }
    return try ConnectRace.first(of: ConnectRace.inTurn(addresses), apart: .milliseconds(250)) { try connect(to: $0) }
  }
}
