internal import CLinux
import Coroutine
import Glibc
import Synchronization

/// A stream connection: TCP or Unix.
///
/// One coroutine may read while another one writes. A second reader, or a second writer, gets ``NetError/busy`` at
/// once, and the first one continues. The connection is closed by ``close()``, at the latest when its last reference is
/// released. No operation raises SIGPIPE.
///
/// Every operation that waits throws:
/// - `CoroutineError.notInCoroutine` outside a coroutine;
/// - ``NetError/closed`` after a close, also if the connection is closed while it waits;
/// - the cancellation error, at once, if the coroutine is cancelled or the deadline of a `co_timeout(_:_:)` passes. A
///   cancelled read consumes no byte. For a cancelled write see ``bytesWritten``.
///
/// <!-- compiled: Tests/CoroutineNetTests/ArticleSnippets.swift -->
/// ```swift
/// let connection = try Connection.connect(to: try co_await(bound))
/// try connection.write("hello\n".utf8)
/// try connection.shutdownWrite()
/// var reader = BufferedReader(connection)
/// print(try reader.readLine() ?? "nothing")
/// ```
public final class Connection: Sendable {
  let socket: WatchedDescriptor
  /// The peer's address, as the system reports it.
  ///
  /// After connecting to 0.0.0.0 that is 127.0.0.1, for example.
  public let remoteAddress: SocketAddress
  /// The local address when the connection was created; the listener's, if the connection was accepted.
  private let knownLocal: SocketAddress
  let isTCP: Bool
  /// See `bytesWritten`; written by the coroutine that has the claim for writing.
  let written = Atomic<Int>(0)

  init(_ socket: WatchedDescriptor, isTCP: Bool, local: SocketAddress, remote: SocketAddress) {
    self.socket = socket
    self.isTCP = isTCP
    knownLocal = local
    remoteAddress = remote
  }

  /// Creates a connection that owns an accepted descriptor.
  convenience init(
    accepted number: Int32,
    isTCP: Bool,
    by local: SocketAddress,
    _ remote: SocketAddress
  ) throws(NetError) {
    let socket = try Socket.watched(number, isTCP: isTCP, "accepting from", remote)
    self.init(socket, isTCP: isTCP, local: local, remote: remote)
  }

  /// Returns two connections that are connected with each other (socketpair).
  ///
  /// Never suspends; may be called anywhere.
  public static func pair() throws(NetError) -> (Connection, Connection) {
    let unnamed = SocketAddress(.unix([]))
    if let network = Simulated.current {
      do {
        let ends = try network.pair()
        return (
          Connection(ends.0, isTCP: false, local: unnamed, remote: unnamed),
          Connection(ends.1, isTCP: false, local: unnamed, remote: unnamed)
        )
      } catch {
        throw NetError(of: error, "creating a pair of sockets", nil)
      }
    }
    var ends: (Int32, Int32) = (-1, -1)
    let code = withUnsafeMutableBytes(of: &ends) {
      clinux_socket_pair($0.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: Int32.self))
    }
    guard code == 0 else { throw NetError(code: -code, "creating a pair of sockets", nil) }
    func end(_ number: Int32) throws(NetError) -> Connection {
      let socket = try Socket.watched(number, isTCP: false, "creating a pair of sockets", nil)
      return Connection(socket, isTCP: false, local: unnamed, remote: unnamed)
    }
    let first = Result { () throws(NetError) in try end(ends.0) }
    let second = Result { () throws(NetError) in try end(ends.1) }
    return (try first.get(), try second.get())
  }

  /// The connection's own address.
  ///
  /// For an accepted connection that is closed, the address of its listener.
  public var localAddress: SocketAddress {
    if socket.simulated != nil { return knownLocal }
    return (withNumber { SocketAddress.local(of: $0) } ?? nil) ?? knownLocal
  }

  // MARK: End

  /// Ends the stream to the peer, which then reads the end of the stream; reading remains possible.
  ///
  /// Never suspends; any thread. A second call has no effect.
  /// - Throws: ``NetError/busy`` while a coroutine writes; ``NetError/closed`` after a close; `ENOTCONN` if the peer
  ///   has reset the connection.
  public func shutdownWrite() throws(NetError) {
    let operation = "ending the stream to"
    try claim(.writing, operation)
    defer { socket.releaseClaim(.writing) }
    guard let code = withNumber({ clinux_shutdown_write($0) }) else {
      throw NetError(.closed, operation, remoteAddress)
    }
    if code != 0 { throw NetError(code: -code, operation, remoteAddress) }
    socket.simulated?.used(.writing)
  }

  /// Closes the connection: every coroutine that waits to read or write gets ``NetError/closed``.
  ///
  /// Never suspends; any thread. A second call has no effect. Bytes that were written are still sent to the peer,
  /// unless bytes of the peer were not read. In that case the system resets the connection, and the peer gets
  /// `ECONNRESET`.
  public func close() { socket.close() }

  /// Whether ``close()`` was called.
  public var isClosed: Bool { socket.isClosed }

  // MARK: Settings

  /// Whether small writes are sent at once (TCP_NODELAY); true from the start.
  ///
  /// Setting it on a Unix socket, or after a close, has no effect. Any thread; does not suspend.
  public var noDelay: Bool {
    get { !isTCP || withNumber { clinux_get_option($0, CLINUX_NO_DELAY) } == 1 }
    set { set(CLINUX_NO_DELAY, newValue) }
  }

  /// Whether the system probes a silent peer from time to time (SO_KEEPALIVE); false at first.
  ///
  /// Setting it after a close has no effect. Any thread; does not suspend.
  public var keepAlive: Bool {
    get { withNumber { clinux_get_option($0, CLINUX_KEEP_ALIVE) } == 1 }
    set { set(CLINUX_KEEP_ALIVE, newValue) }
  }

  private func set(_ option: clinux_socket_option, _ isOn: Bool) {
    _ = withNumber { clinux_set_option($0, option, isOn) }
  }

  // MARK: Descriptor

  /// Calls `body` with the descriptor, for options that this class does not offer; with -1 after a close.
  ///
  /// The connection owns the descriptor: `body` must neither close it, nor make it blocking, nor store it. The
  /// descriptor stays open until `body` returns, even if another thread closes the connection. So a `body` that waits,
  /// by `co_untilReadable` for example, puts the close off: it must not wait for what the close would bring. Any
  /// thread; does not suspend by itself.
  public func withUnsafeDescriptor<R, Failure>(_ body: (Int32) throws(Failure) -> R) throws(Failure) -> R {
    guard socket.enter() else { return try body(-1) }
    defer { socket.leave() }
    return try body(socket.number)
  }

  /// Calls `body` with the descriptor; returns nil if the connection is closed.
  func withNumber<R>(_ body: (Int32) -> R) -> R? {
    guard socket.enter() else { return nil }
    defer { socket.leave() }
    return body(socket.number)
  }

  func claim(_ direction: WatchedDescriptor.Direction, _ operation: String) throws(NetError) {
    switch socket.claim(direction) {
    case .done: return
    case .closed: throw NetError(.closed, operation, remoteAddress)
    case .busy: throw NetError(.busy, operation, remoteAddress)
    }
  }

  /// Runs one operation of the calling coroutine with the claim of a direction, and translates its errors.
  func claiming<R>(_ direction: WatchedDescriptor.Direction, _ operation: String, _ body: () throws -> R) throws -> R {
    try co_checkCancelled()
    try claim(direction, operation)
    defer { socket.releaseClaim(direction) }
    return try NetError.translating(operation, remoteAddress, body)
  }
}
