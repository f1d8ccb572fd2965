internal import CLinux
import Coroutine
import Glibc

/// Takes over a descriptor that this module has not opened: passed by a parent process, by systemd, or by other code.
///
/// Everything that could refuse is asked first, and nothing is changed before the last answer. So a call that throws
/// leaves the descriptor to its owner, open and as it was.
enum Adoption {
  enum Role: String {
    case listener = "a listener"
    case connection = "a connection"
    case datagrams = "a datagram socket"
  }

  /// The addresses of a socket that may be taken over.
  struct Candidate {
    let number: Int32
    let role: Role
    let family: Int32
    let local: SocketAddress
    let remote: SocketAddress
    var isTCP: Bool { role != .datagrams && family != AF_UNIX }
  }

  /// Returns the role that a socket could have; throws if the descriptor is closed, no socket, or of another kind.
  static func role(of number: Int32) throws(NetError) -> Role {
    let type = clinux_get_value(number, CLINUX_TYPE)
    if type < 0 { throw NetError(code: -type, "adopting descriptor \(number)", nil) }
    switch type {
    case Int32(SOCK_DGRAM.rawValue): return .datagrams
    case Int32(SOCK_STREAM.rawValue):
      return clinux_get_value(number, CLINUX_IS_LISTENING) == 1 ? .listener : .connection
    default: throw NetError(code: ESOCKTNOSUPPORT, "adopting descriptor \(number)", nil)
    }
  }

  /// Checks that a descriptor is a socket for `role`; changes nothing.
  static func check(_ number: Int32, for role: Role) throws(NetError) -> Candidate {
    let operation = "adopting descriptor \(number) as \(role.rawValue)"
    if Simulated.current != nil { throw NetError(.notSimulated, code: EOPNOTSUPP, operation) }
    guard try self.role(of: number) == role else { throw NetError(code: EINVAL, operation, nil) }
    let family = clinux_get_value(number, CLINUX_DOMAIN)
    guard [AF_INET, AF_INET6, AF_UNIX].contains(family) else { throw NetError(code: EAFNOSUPPORT, operation, nil) }
    let unnamed = SocketAddress(.unix([]))
    var remote = unnamed
    if role == .connection {
      guard let peer = SocketAddress.remote(of: number) else { throw NetError(code: ENOTCONN, operation, nil) }
      remote = peer
    }
    let local = SocketAddress.local(of: number) ?? unnamed
    return Candidate(number: number, role: role, family: family, local: local, remote: remote)
  }

  /// Makes a descriptor non-blocking and close-on-exec, and returns its owner.
  static func own(_ candidate: Candidate) throws(NetError) -> WatchedDescriptor {
    let operation = "adopting descriptor \(candidate.number)"
    let owner: WatchedDescriptor
    do {
      owner = try WatchedDescriptor(candidate.number, shortReadMeansEmpty: candidate.isTCP, kept: true)
    } catch {
      throw NetError(of: error, operation, candidate.local)
    }
    // Of a socket that has just answered, nothing here fails.
    _ = clinux_make_own(candidate.number)
    // As every TCP socket of this module; a listener's connections inherit it.
    if candidate.isTCP { Socket.set(CLINUX_NO_DELAY, true, of: owner) }
    return owner
  }
}

extension Connection {
  /// Takes over the descriptor of a connected stream socket, TCP or Unix: from a parent process, or from other code.
  ///
  /// Never suspends; any thread. After it returns, the connection owns the descriptor, and closes it. It is made
  /// non-blocking, also for other processes that share it, and close-on-exec; ``noDelay`` is set. Nothing else may use
  /// the number from then on, and it must be adopted once.
  ///
  /// - Throws: ``NetError``: `EBADF` if the descriptor is closed, `ENOTSOCK` if it is no socket, `EINVAL` if it is a
  ///   listener or a socket of another type, `ENOTCONN` if it has no peer (any more), `EAFNOSUPPORT` if it is neither
  ///   TCP nor Unix, `EOPNOTSUPP` in a simulated world. The descriptor then still belongs to the caller, unchanged.
  public static func adopting(_ descriptor: Int32) throws -> Connection {
    let candidate = try Adoption.check(descriptor, for: .connection)
    let socket = try Adoption.own(candidate)
    return Connection(socket, isTCP: candidate.isTCP, local: candidate.local, remote: candidate.remote)
  }
}

extension Listener {
  /// Takes over the descriptor of a bound, listening socket, TCP or Unix: from a parent process, or from other code.
  ///
  /// Never suspends; any thread. After it returns, the listener owns the descriptor, and closes it. It is made
  /// non-blocking, also for other processes that share it, and close-on-exec; accepted connections have
  /// ``Connection/noDelay``. Nothing else may use the number from then on, and it must be adopted once. The file of a
  /// Unix socket stays after the close: it belongs to the one who has bound it.
  ///
  /// - Throws: ``NetError``: `EBADF` if the descriptor is closed, `ENOTSOCK` if it is no socket, `EINVAL` if it does
  ///   not listen, `EAFNOSUPPORT` if it is neither TCP nor Unix, `EOPNOTSUPP` in a simulated world. The descriptor then
  ///   still belongs to the caller, unchanged.
  public static func adopting(_ descriptor: Int32) throws -> Listener {
    let candidate = try Adoption.check(descriptor, for: .listener)
    return Listener(try Adoption.own(candidate), nil, candidate.local)
  }
}

extension DatagramSocket {
  /// Takes over the descriptor of a bound datagram socket, UDP or Unix: from a parent process, or from other code.
  ///
  /// Never suspends; any thread. After it returns, this object owns the descriptor, and closes it. It is made
  /// non-blocking, also for other processes that share it, and close-on-exec. Nothing else may use the number from then
  /// on, and it must be adopted once. The file of a Unix socket stays after the close.
  ///
  /// - Throws: ``NetError``: `EBADF` if the descriptor is closed, `ENOTSOCK` if it is no socket, `EINVAL` if it is of
  ///   another type, `EAFNOSUPPORT` if it is neither UDP nor Unix, `EOPNOTSUPP` in a simulated world. The descriptor
  ///   then still belongs to the caller, unchanged.
  public static func adopting(_ descriptor: Int32) throws -> DatagramSocket {
    let candidate = try Adoption.check(descriptor, for: .datagrams)
    let socket = try Adoption.own(candidate)
    reportTargets(socket.number, candidate.family)
    return DatagramSocket(socket, nil, candidate.local, candidate.family)
  }
}
