internal import CLinux
import Coroutine
import Glibc

/// A socket for datagrams: UDP or Unix.
///
/// Any number of coroutines may receive and send at once. Each datagram goes to one of them. The socket is closed by
/// ``close()``, at the latest when its last reference is released.
public final class DatagramSocket: Sendable {
  let socket: WatchedDescriptor
  private let path: UnixPath?
  /// The address that it is bound to, with the port that the system chose.
  public let address: SocketAddress
  let family: Int32

  init(_ socket: WatchedDescriptor, _ path: UnixPath?, _ address: SocketAddress, _ family: Int32) {
    self.socket = socket
    self.path = path
    self.address = address
    self.family = family
  }

  deinit { close() }

  /// Binds a socket to `address`.
  ///
  /// Never suspends; any thread. With port 0 the system chooses the port. If the path of a Unix socket exists, and no
  /// process has that socket open, the file is replaced. The close removes the file.
  ///
  /// - Throws: ``NetError``: `EADDRINUSE` if another socket has the address; the error of an option that the system
  ///   refuses.
  public static func bind(_ address: SocketAddress, options: SocketOptions = .init()) throws(NetError) -> DatagramSocket
  {
    do {
      return try bindOnce(address, options)
    } catch let error where address.isAny && error.code == EAFNOSUPPORT {
      return try bindOnce(SocketAddress(.ipv4(0, address.port ?? 0)), options)
    }
  }

  private static func bindOnce(_ address: SocketAddress, _ options: SocketOptions) throws(NetError) -> DatagramSocket {
    if let group = options.multicast.first, Simulated.current != nil {
      throw NetError(.notSimulated, code: EOPNOTSUPP, "joining the group", group)
    }
    if let network = Simulated.current {
      do {
        let (socket, bound) = try network.bindDatagrams(address)
        return DatagramSocket(socket, nil, bound, address.family)
      } catch {
        throw NetError(of: error, "binding", address)
      }
    }
    let socket = try Socket.make(address, isStream: false, "binding")
    if address.family == AF_INET6 { Socket.set(CLINUX_V6_ONLY, !address.isAny, of: socket) }
    try options.apply(to: socket.number, address, isStream: false)
    if !options.multicast.isEmpty { Socket.set(CLINUX_REUSE_ADDRESS, true, of: socket) }
    reportTargets(socket.number, address.family)
    let path = try Socket.bind(socket, address, unlinks: true)
    do {
      try options.joinGroups(socket)
    } catch {
      path?.remove()
      throw error
    }
    return DatagramSocket(socket, path, SocketAddress.local(of: socket.number) ?? address, address.family)
  }

  /// Receives a datagram.
  ///
  /// Suspends until one arrives. If the coroutine is cancelled, it throws at once, and no datagram is consumed.
  ///
  /// - Returns: The number of bytes, which may be 0, and the sender's address.
  /// - Throws: ``NetError/tooLong`` if the datagram is larger than the buffer; the buffer has the beginning of it, and
  ///   the other bytes are lost. ``NetError/closed`` after a close, also if the socket is closed while it waits. The
  ///   cancellation error. `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receive(into buffer: UnsafeMutableRawBufferPointer) throws -> (count: Int, from: SocketAddress) {
    var sender: SocketAddress?
    let count = try NetError.translating("receiving at", address) {
      try socket.perform(.reading) { number in
        var result: Int64 = 0
        if let end = socket.simulated, let simulated = end as? any SimulatedDatagrams {
          var target: SocketAddress?
          return Self.receive(number, simulated, buffer, &sender, &target)
        }
        sender = SocketAddress.read {
          result = clinux_receive_from(number, buffer.baseAddress, buffer.count, $0, $1)
        }
        return .init(result)
      }
    }
    if count > buffer.count { throw NetError(.tooLong, "receiving at", address) }
    return (Int(count), sender ?? SocketAddress(.unix([])))
  }

  static func receive(
    _ number: Int32,
    _ simulated: any SimulatedDatagrams,
    _ buffer: UnsafeMutableRawBufferPointer,
    _ sender: inout SocketAddress?,
    _ target: inout SocketAddress?
  ) -> WatchedDescriptor.Attempt {
    var byte: UInt8 = 0
    let result = clinux_receive(number, &byte, 1)
    guard result > 0, let datagram = simulated.next() else { return .init(result) }
    buffer.copyBytes(from: datagram.bytes.prefix(buffer.count))
    (sender, target) = (datagram.from, datagram.to)
    return .init(Int64(datagram.bytes.count))
  }

  /// Sends a datagram.
  ///
  /// Suspends while the system has no room for it. If the coroutine is cancelled, it throws at once, and the datagram
  /// is not sent. A datagram that was sent may be lost.
  ///
  /// - Throws: ``NetError``: `EMSGSIZE` if it is too long, `ECONNREFUSED` if no process has the Unix socket any more.
  ///   ``NetError/closed`` after a close, also if the socket is closed while it waits. The cancellation error.
  ///   `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func send(_ bytes: [UInt8], to address: SocketAddress) throws {
    var pause: Duration = .milliseconds(1)
    try NetError.translating("sending to", address) {
      if let end = socket.simulated, let simulated = end as? any SimulatedDatagrams {
        _ = try socket.perform(.writing) { _ in .init(0) }
        _ = simulated.send(bytes, to: address, from: nil)
        return
      }
      while true {
        var isFull = false
        _ = try socket.perform(.writing) { number in
          let result = address.withSystem(for: family) { system, length in
            bytes.withUnsafeBytes { clinux_send_to(number, $0.baseAddress, $0.count, system, length) }
          }
          // The receiver's queue is full. The kernel does not report to this socket when that changes.
          isFull = result == -Int64(EAGAIN) && family == AF_UNIX
          return .init(isFull ? 0 : result)
        }
        guard isFull else { return }
        try co_delay(pause)
        pause = min(pause * 2, .milliseconds(20))
      }
    }
  }

  /// Closes the socket: every coroutine that waits gets ``NetError/closed``.
  ///
  /// Never suspends; any thread. A second call has no effect.
  public func close() {
    socket.close { _ in path?.remove() }
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
