internal import CLinux
import Coroutine
import Glibc

// What connections, listeners and datagram sockets have in common: the descriptor, and the translation of errors.

extension NetError {
  /// The error of a system call.
  init(code: Int32, _ operation: String, _ address: SocketAddress?) {
    self.init(.system, code: code, operation, address)
  }

  /// Runs `body`, and throws what it throws with the operation and the address.
  ///
  /// Cancellations pass unchanged.
  static func telling<R>(_ operation: String, _ address: @autoclosure () -> SocketAddress?, _ body: () throws -> R)
    throws -> R
  {
    do {
      return try body()
    } catch let failure as WatchedDescriptor.Failure {
      switch failure {
      case .closed: throw NetError(.closed, operation, address())
      case .system(let code): throw NetError(code: code, operation, address())
      }
    } catch let refusal as DescriptorRefusal {
      throw NetError(code: refusal.code, operation, address())
    }
  }
}

/// Makes sockets that are not connected yet.
enum Socket {
  /// Creates a socket for `address`, and hands it over to the runtime.
  static func make(_ address: SocketAddress, isStream: Bool, _ operation: String) throws -> WatchedDescriptor {
    let number = clinux_socket(address.family, isStream)
    guard number >= 0 else { throw NetError(code: -number, operation, address) }
    return try watched(number, isTCP: isStream && address.family != AF_UNIX, operation, address)
  }

  static func watched(_ number: Int32, isTCP: Bool, _ operation: String, _ address: SocketAddress?) throws
    -> WatchedDescriptor
  {
    try NetError.telling(operation, address) { try WatchedDescriptor(number, shortReadMeansEmpty: isTCP) }
  }

  /// Sets an option of a socket that nobody else has yet.
  static func set(_ option: clinux_socket_option, _ isOn: Bool, of socket: WatchedDescriptor) {
    _ = clinux_set_option(socket.number, option, isOn)
  }

  /// Binds a socket, so that its Unix path, if it has one, is removed by the result.
  static func bind(_ socket: WatchedDescriptor, _ address: SocketAddress, unlinks: Bool) throws -> UnixPath? {
    let path = UnixPath(address, unlinks: unlinks)
    path?.removeIfStale()
    let code = address.withSystem {
      Glibc.bind(socket.number, $0.assumingMemoryBound(to: sockaddr.self), $1) == 0 ? 0 : errno
    }
    guard code == 0 else { throw NetError(code: code, "binding", address) }
    path?.remember()
    return path
  }
}
