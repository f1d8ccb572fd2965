internal import CLinux
import Coroutine
import Glibc

/// Creates and binds the descriptors of connections, listeners and datagram sockets.
enum Socket {
  /// Creates a socket for the family of `address`; the result owns the descriptor.
  static func make(_ address: SocketAddress, isStream: Bool, _ operation: String) throws(NetError) -> WatchedDescriptor
  {
    let number = clinux_socket(address.family, isStream)
    guard number >= 0 else { throw NetError(code: -number, operation, address) }
    return try watched(number, isTCP: isStream && address.family != AF_UNIX, operation, address)
  }

  /// Returns an owner of an open descriptor; if it throws, the descriptor is closed.
  static func watched(_ number: Int32, isTCP: Bool, _ operation: String, _ address: SocketAddress?)
    throws(NetError) -> WatchedDescriptor
  {
    do {
      return try WatchedDescriptor(number, shortReadMeansEmpty: isTCP)
    } catch {
      throw NetError(of: error, operation, address)
    }
  }

  /// Sets an option of a socket that no other thread uses yet.
  static func set(_ option: clinux_socket_option, _ isOn: Bool, of socket: WatchedDescriptor) {
    _ = clinux_set_option(socket.number, option, isOn)
  }

  /// Binds a socket, and returns the owner of its Unix path; nil if there is no path to remove.
  static func bind(
    _ socket: WatchedDescriptor,
    _ address: SocketAddress,
    unlinks: Bool
  ) throws(NetError) -> UnixPath? {
    let path = UnixPath(address, unlinks: unlinks)
    func bindNow() -> Int32 {
      address.withSystem {
        Glibc.bind(socket.number, $0.assumingMemoryBound(to: sockaddr.self), $1) == 0 ? 0 : errno
      }
    }
    let code = path?.replacingStale(bindNow) ?? bindNow()
    guard code == 0 else { throw NetError(code: code, "binding", address) }
    path?.remember()
    return path
  }

  /// Returns whether a read of a descriptor would not wait: bytes or a connection are there, or the stream has ended.
  ///
  /// Never blocks; any thread.
  @Sendable
  static func isReadable(_ number: Int32) -> Bool {
    var query = pollfd(fd: number, events: Int16(POLLIN), revents: 0)
    return poll(&query, 1, 0) != 0
  }
}
