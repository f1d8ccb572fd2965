internal import CLinux
public import Coroutine
import Glibc

/// A socket for datagrams: UDP or Unix.
///
/// ``bind(_:options:)`` makes one that hears from everybody, ``connect(to:options:)`` one for a single peer. Any number
/// of coroutines may receive and send at once. Each datagram goes to one of them. The socket is closed by ``close()``,
/// at the latest when its last reference is released.
public final class DatagramSocket: Sendable {
  let socket: WatchedDescriptor
  private let path: UnixPath?
  /// The address that it is bound to, with the port that the system chose.
  public let address: SocketAddress
  /// The address that it is connected to; nil if it is not.
  public let peer: SocketAddress?
  let family: Int32

  init(
    _ socket: WatchedDescriptor,
    _ path: UnixPath?,
    _ address: SocketAddress,
    _ family: Int32,
    peer: SocketAddress? = nil
  ) {
    self.socket = socket
    self.path = path
    self.address = address
    self.family = family
    self.peer = peer
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

  /// Creates a socket for one peer: it sends to `address`, and the system drops what comes from others.
  ///
  /// Never suspends, because nothing is sent; any thread. The system chooses the local address, unless
  /// `SocketOptions.source` is given; the name of a Unix socket that it chooses is an abstract one. If the system
  /// learns that the peer has no such socket, the next call that sends or receives throws `ECONNREFUSED`, once; the
  /// socket can be used further.
  ///
  /// - Throws: ``NetError``: `ENETUNREACH` without a route, `ENOENT` or `ECONNREFUSED` if there is no such Unix socket;
  ///   the error of an option that the system refuses.
  public static func connect(
    to address: SocketAddress,
    options: SocketOptions = .init()
  ) throws(NetError) -> DatagramSocket {
    let operation = "connecting a datagram socket to"
    if let network = Simulated.current {
      if let source = options.source { throw NetError(.notSimulated, code: EOPNOTSUPP, "connecting from", source) }
      do {
        let isLocal = address.canonical == .loopback(port: address.port ?? 0)
        let (socket, bound) = try network.bindDatagrams(isLocal ? .loopback(port: 0) : .any(port: 0))
        return DatagramSocket(socket, nil, bound, address.family, peer: address.canonical)
      } catch {
        throw NetError(of: error, operation, address)
      }
    }
    let socket = try Socket.make(address, isStream: false, operation)
    try options.apply(to: socket.number, address, isStream: false)
    reportTargets(socket.number, address.family)
    var options = options
    // A peer can answer only a socket that has a name.
    if address.family == AF_UNIX, options.source == nil { options.source = SocketAddress(.unix([])) }
    try options.bindSource(socket, for: address)
    let code = address.withSystem {
      Glibc.connect(socket.number, $0.assumingMemoryBound(to: sockaddr.self), $1) == 0 ? 0 : errno
    }
    if code != 0 { throw NetError(code: code, operation, address) }
    let local = SocketAddress.local(of: socket.number) ?? SocketAddress(.unix([]))
    return DatagramSocket(socket, nil, local, address.family, peer: address)
  }

  /// Receives a datagram.
  ///
  /// Suspends until one arrives. If the coroutine is cancelled, it throws at once, and no datagram is consumed.
  ///
  /// - Returns: The number of bytes, which may be 0, and the sender's address.
  /// - Throws: ``NetError/tooLong`` if the datagram is larger than the buffer; the buffer has the beginning of it, and
  ///   the other bytes are lost. ``NetError/closed`` after a close, also if the socket is closed while it waits. If it
  ///   is connected, `ECONNREFUSED` as ``connect(to:options:)`` says. The cancellation error.
  ///   `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receive(into buffer: UnsafeMutableRawBufferPointer) throws -> (count: Int, from: SocketAddress) {
    var sender: SocketAddress?
    let count = try NetError.translating("receiving at", address) {
      try socket.perform(.reading) { number in
        var result: Int64 = 0
        if let end = socket.simulated, let simulated = end as? any SimulatedDatagrams {
          var target: SocketAddress?
          return receive(number, simulated, buffer, &sender, &target)
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

  func receive(
    _ number: Int32,
    _ simulated: any SimulatedDatagrams,
    _ buffer: UnsafeMutableRawBufferPointer,
    _ sender: inout SocketAddress?,
    _ target: inout SocketAddress?
  ) -> WatchedDescriptor.Attempt {
    var byte: UInt8 = 0
    let result = clinux_receive(number, &byte, 1)
    guard result > 0, let datagram = simulated.next() else { return .init(result) }
    if let peer, datagram.from.canonical != peer { return receive(number, simulated, buffer, &sender, &target) }
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
    try send(bytes, address) { number, bytes in
      address.withSystem(for: family) { clinux_send_to(number, bytes.baseAddress, bytes.count, $0, $1) }
    }
  }

  /// Sends a datagram to the peer that the socket is connected to.
  ///
  /// In all other respects as ``send(_:to:)``.
  /// - Throws: ``NetError`` with `EDESTADDRREQ` if the socket is not connected; `ECONNREFUSED` as
  ///   ``connect(to:options:)`` says.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func send(_ bytes: [UInt8]) throws {
    guard let peer else { throw NetError(code: EDESTADDRREQ, "sending without an address from", address) }
    try send(bytes, peer) { clinux_send($0, $1.baseAddress, $1.count) }
  }

  private func send(
    _ bytes: [UInt8],
    _ address: SocketAddress,
    _ attempt: (Int32, UnsafeRawBufferPointer) -> Int64
  ) throws {
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
          let result = bytes.withUnsafeBytes { attempt(number, $0) }
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

// MARK: - In a select

extension DatagramSocket {
  /// Creates a case of `co_select(biased:_:)` that is ready when a datagram is there.
  ///
  /// Also ready when the socket is closed: then co_select throws ``NetError/closed``. The case receives nothing, so
  /// another coroutine may receive the datagram before `body` does.
  public func onReadable<R>(_ body: @escaping () throws -> R) -> SelectCase<R> {
    socket.onReady(.reading, isReady: Socket.isReadable) { [self] code in
      if code != 0 { throw NetError(code: code, "waiting for a datagram at", address) }
      if isClosed { throw NetError(.closed, "waiting for a datagram at", address) }
      return try body()
    }
  }
}
