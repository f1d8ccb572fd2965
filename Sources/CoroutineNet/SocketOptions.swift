internal import CLinux
import Coroutine
import Glibc

/// The options of a socket before it is bound or connected; nil leaves what the system has chosen.
///
/// Some options count only before: the size of a receive buffer decides how large the window of a TCP connection can
/// become, and an address is bound once. An option that the system refuses fails the call that creates the socket, with
/// the system's error. Options of TCP are ignored for Unix sockets. A simulated world refuses ``source`` and
/// ``multicast`` with `EOPNOTSUPP`; the others have no effect there, because nothing depends on them.
public struct SocketOptions: Sendable {
  /// The local address of a connection that is made; port 0 lets the system choose the port.
  ///
  /// Of a listener and a datagram socket, the address that they are bound to is given in its place. The file of a Unix
  /// socket's path stays after the close.
  public var source: SocketAddress?
  /// The size of the receive buffer in bytes (SO_RCVBUF), which the system doubles and may limit (net.core.rmem_max).
  ///
  /// The system then no longer adapts the size to the connection.
  public var receiveBuffer: Int?
  /// The size of the send buffer in bytes (SO_SNDBUF), which the system doubles and may limit (net.core.wmem_max).
  ///
  /// The system then no longer adapts the size to the connection.
  public var sendBuffer: Int?
  /// The longest time for which the peer may leave sent bytes unacknowledged (TCP_USER_TIMEOUT).
  ///
  /// After that the system ends the connection with `ETIMEDOUT`. Rounded up to milliseconds.
  public var userTimeout: Duration?
  /// Whether small writes are sent at once (TCP_NODELAY).
  public var noDelay: Bool? = true
  /// The time after which the system probes a silent peer, and the time between two probes (SO_KEEPALIVE).
  ///
  /// Rounded up to seconds; the system allows 1 to 32,767. After 9 probes without an answer
  /// (net.ipv4.tcp_keepalive_probes) the connection ends with `ETIMEDOUT`.
  public var keepAlive: Duration?
  /// The multicast groups that a datagram socket joins; their ports do not count.
  ///
  /// The interface of an IPv6 group is its scope ("ff02::1%eth0"); otherwise the system chooses it. Several sockets may
  /// then have the same address, and each of them receives every datagram of the group.
  public var multicast: [SocketAddress] = []
  /// Whether a datagram socket may send to broadcast addresses (SO_BROADCAST).
  public var broadcast = false
  /// Creates the default options.
  public init() {}
}

extension SocketOptions {
  /// Sets the options of a new socket, which no other thread uses yet.
  func apply(to number: Int32, _ address: SocketAddress, isStream: Bool) throws(NetError) {
    func check(_ code: Int32, _ name: String) throws(NetError) {
      if code < 0 { throw NetError(code: -code, "setting \(name) of a socket for", address) }
    }
    func set(_ option: clinux_socket_value, _ value: Int, _ name: String) throws(NetError) {
      guard let value = Int32(exactly: value), value >= 0 else {
        throw NetError(code: EINVAL, "setting \(name) of a socket for", address)
      }
      try check(clinux_set_value(number, option, value), name)
    }
    if let receiveBuffer { try set(CLINUX_RECEIVE_BUFFER, receiveBuffer, "the receive buffer") }
    if let sendBuffer { try set(CLINUX_SEND_BUFFER, sendBuffer, "the send buffer") }
    if !isStream, broadcast { try check(clinux_set_option(number, CLINUX_BROADCAST, true), "SO_BROADCAST") }
    guard isStream, address.family != AF_UNIX else { return }
    if let noDelay { try check(clinux_set_option(number, CLINUX_NO_DELAY, noDelay), "TCP_NODELAY") }
    if let userTimeout {
      try set(CLINUX_USER_TIMEOUT, Self.whole(userTimeout, 1_000_000), "TCP_USER_TIMEOUT")
    }
    if let keepAlive {
      let seconds = Self.whole(keepAlive, 1_000_000_000)
      try set(CLINUX_KEEP_IDLE, seconds, "TCP_KEEPIDLE")
      try set(CLINUX_KEEP_INTERVAL, seconds, "TCP_KEEPINTVL")
      try check(clinux_set_option(number, CLINUX_KEEP_ALIVE, true), "SO_KEEPALIVE")
    }
  }

  /// The duration in units of so many nanoseconds, rounded up; -1 if it is negative.
  private static func whole(_ duration: Duration, _ unit: Int64) -> Int {
    let nanoseconds = duration.nanoseconds
    if nanoseconds < 0 { return -1 }
    let (quotient, remainder) = nanoseconds.quotientAndRemainder(dividingBy: unit)
    return Int(quotient) + (remainder > 0 ? 1 : 0)
  }

  /// Binds a new socket to `source`, before it connects to `address`.
  func bindSource(_ socket: WatchedDescriptor, for address: SocketAddress) throws(NetError) {
    guard let source else { return }
    // With port 0, a port that another connection to another peer has may be used as well: the choice is made later.
    if source.port == 0 { Socket.set(CLINUX_LATE_PORT, true, of: socket) }
    let code = source.withSystem(for: address.family) {
      Glibc.bind(socket.number, $0.assumingMemoryBound(to: sockaddr.self), $1) == 0 ? 0 : errno
    }
    if code != 0 { throw NetError(code: code, "binding", source) }
  }

  /// Joins the multicast groups; called after the bind.
  func joinGroups(_ socket: WatchedDescriptor) throws(NetError) {
    for group in multicast {
      var interface: UInt32 = 0
      if case .ipv6(_, _, let scope, _) = group.storage { interface = scope }
      let code = group.withSystem { clinux_join_group(socket.number, $0, $1, interface) }
      if code < 0 { throw NetError(code: -code, "joining the group", group) }
    }
  }
}
