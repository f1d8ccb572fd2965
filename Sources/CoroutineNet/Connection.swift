internal import CLinux
public import Coroutine
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
/// - the cancellation error, at once, if the coroutine is cancelled or the deadline of a `co_timeout` passes. A
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
  /// See `wasReset`.
  let hasReset = Atomic<Bool>(false)

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

  /// Closes the connection so that the peer sees that the stream was cut off: it gets `ECONNRESET`, and no end.
  ///
  /// For a stream whose length only its end tells, and which is incomplete. Bytes that the peer has not received may be
  /// lost. In all other respects as ``close()``. A Unix socket has no reset: there the peer sees the end, unless it has
  /// sent bytes that were not read.
  ///
  /// Never suspends; any thread. After a close it has no effect.
  public func reset() {
    if let simulated = socket.simulated as? any SimulatedStream {
      if !isClosed { simulated.crash() }
    } else {
      _ = withNumber { number in
        // On, and for no time.
        var now: (Int32, Int32) = (1, 0)
        setsockopt(number, SOL_SOCKET, SO_LINGER, &now, socklen_t(MemoryLayout.size(ofValue: now)))
      }
    }
    hasReset.store(true, ordering: .releasing)
    close()
  }

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

// MARK: - Reading

extension Connection {
  /// Reads the bytes that have arrived: at least one, and at most as many as fit.
  ///
  /// Suspends if none has arrived. Bytes, the end of the stream, an error of the connection or a close resume it.
  ///
  /// The buffer is the caller's, so it takes its memory also while the coroutine waits, and on the stack it keeps the
  /// pages above and below. Where many connections are idle, ``read(upTo:)`` and ``BufferedReader`` need memory for the
  /// bytes that have arrived only.
  ///
  /// - Returns: The number of bytes; 0 at the end of the stream, and if the buffer has no room.
  /// - Throws: ``NetError``: `ECONNRESET` if the peer has reset the connection. See ``Connection`` for the errors of
  ///   all operations.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    try claiming(.reading, "reading from") {
      guard buffer.count > 0, let bytes = buffer.baseAddress else { return 0 }
      return Int(try socket.perform(.reading) { Self.receive($0, bytes, buffer.count) })
    }
  }

  /// Reads the bytes that have arrived, at least one and at most `count`.
  ///
  /// While the coroutine waits, no memory is allocated for the bytes. In all other respects it behaves as
  /// ``read(into:)`` does.
  ///
  /// - Returns: The bytes; an empty array at the end of the stream, and if `count` is not positive.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func read(upTo count: Int) throws -> [UInt8] {
    try claiming(.reading, "reading from") {
      var bytes: [UInt8] = []
      guard count > 0 else { return bytes }
      _ = try socket.perform(.reading) {
        // An attempt that found nothing has left its memory in `bytes`.
        bytes = []
      } _: { number in
        var attempt = WatchedDescriptor.Attempt(0)
        let room = Self.room(number, count)
        bytes = [UInt8](unsafeUninitializedCapacity: room) { buffer, filled in
          attempt = Self.receive(number, UnsafeMutableRawPointer(buffer.baseAddress.unsafelyUnwrapped), room)
          filled = Int(max(0, attempt.result))
        }
        return attempt
      }
      // A few bytes must not retain a large buffer.
      return bytes.count < bytes.capacity / 2 ? bytes.withUnsafeBufferPointer { Array($0) } : bytes
    }
  }

  /// The number of bytes above which the system is asked how many have arrived, before memory is allocated.
  private static var large: Int { 65_536 }

  private static func room(_ number: Int32, _ count: Int) -> Int {
    count <= large ? count : min(count, max(large, Int(clinux_readable_bytes(number))))
  }

  static func receive(_ number: Int32, _ bytes: UnsafeMutableRawPointer, _ count: Int) -> WatchedDescriptor.Attempt {
    let result = clinux_receive(number, bytes, count)
    return .init(result, isShort: result > 0 && result < Int64(count))
  }
}

// MARK: - Writing

// A write continues until the kernel has taken all bytes. If it ends before, the peer may have received the bytes that
// the kernel has taken.
//
// How the caller learns their number:
// - A `NetError` has it in `bytesWritten`.
// - A cancellation or a deadline keeps its own error, because scopes and timeouts recognise that error. Therefore the
//   connection counts as well: the difference of `bytesWritten` after and before the write is exact.
//
// After an incomplete write the connection stays open, because only the caller knows whether the remaining bytes can
// follow. A caller that does not write them must close the connection.

extension Connection {
  /// The number of bytes that the kernel has taken from all writes so far, also from failed and cancelled ones.
  ///
  /// After a cancelled write, the difference from the value before it is the number of bytes that were written. The
  /// peer then has an incomplete message: the caller writes the remaining bytes, or closes. Any thread; does not
  /// suspend.
  public var bytesWritten: Int { written.load(ordering: .acquiring) }

  /// Writes all of `bytes`, in order.
  ///
  /// Suspends while the peer does not read and the system's buffer is full. It returns when the system has taken the
  /// last byte, not when the peer has read it.
  ///
  /// - Throws: ``NetError``: `EPIPE` or `ECONNRESET` if the peer has closed; its ``NetError/bytesWritten`` is the
  ///   number of bytes that the kernel had taken. The cancellation error, also after some of the bytes; then
  ///   ``bytesWritten`` counts them. The failure of a generator, before any of its bytes. See ``Connection`` for the
  ///   errors of all operations.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func write(_ bytes: some Sequence<UInt8>) throws {
    if try bytes.withContiguousStorageIfAvailable({ try write(UnsafeRawBufferPointer($0)) }) != nil { return }
    let all = Array(bytes)
    try bytes.throwFailure()
    try all.withUnsafeBytes { try write($0) }
  }

  /// Writes all bytes of a buffer, as ``write(_:)-(Sequence<UInt8>)`` does; the buffer must not change before the call
  /// returns.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func write(_ buffer: UnsafeRawBufferPointer) throws {
    try writing(buffer.count) { number, sent in
      clinux_send(number, buffer.baseAddress.unsafelyUnwrapped + sent, buffer.count - sent)
    }
  }

  /// Writes all bytes of several buffers, one buffer after the other, with one system call if the kernel takes them.
  ///
  /// In all other respects it behaves as ``write(_:)-(Sequence<UInt8>)`` does.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func write(_ buffers: [[UInt8]]) throws {
    var total = 0
    for buffer in buffers { total += buffer.count }
    // The first buffer that is not completely written, and the number of bytes before it.
    var first = 0
    var before = 0
    // The kernel's limit, IOV_MAX.
    try withUnsafeTemporaryAllocation(of: clinux_piece.self, capacity: max(1, min(buffers.count, 1_024))) { pieces in
      try writing(total) { number, sent in
        while before + buffers[first].count <= sent {
          before += buffers[first].count
          first += 1
        }
        var count = 0
        var index = first
        while index < buffers.count, count < pieces.count {
          let skipped = index == first ? sent - before : 0
          // Sound because `buffers` holds the storage, which does not move because it is not changed here.
          let bytes = buffers[index].withUnsafeBufferPointer { $0.baseAddress }
          if let bytes, buffers[index].count > skipped {
            pieces[count] = clinux_piece(bytes: bytes + skipped, count: buffers[index].count - skipped)
            count += 1
          }
          index += 1
        }
        return clinux_send_pieces(number, pieces.baseAddress.unsafelyUnwrapped, count)
      }
    }
  }

  /// Writes `count` bytes of a file from `offset` on, without copying them into the process (sendfile).
  ///
  /// Suspends as ``write(_:)-(Sequence<UInt8>)`` does. If the file's bytes are not in memory, it blocks the thread
  /// until the disk has read them. The caller owns `descriptor`, whose position does not change, and must keep it open.
  ///
  /// - Throws: ``NetError/endOfStream`` if the file ends before; `EINVAL`, `ESPIPE` or `EBADF` if `descriptor` is not a
  ///   file that can be sent. The error's ``NetError/bytesWritten`` is the number of bytes that were sent. In all other
  ///   respects as ``write(_:)-(Sequence<UInt8>)``.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func sendFile(_ descriptor: Int32, offset: Int64, count: Int) throws {
    let operation = "sending a file to"
    guard count >= 0, offset >= 0, !offset.addingReportingOverflow(Int64(count)).overflow else {
      throw NetError(code: EINVAL, operation, remoteAddress)
    }
    // The bytes of one call: enough to make the cost of the call negligible, and few enough that a fast peer does not
    // keep the thread busy for long.
    let most = 1 << 20
    try writing(count, operation) { number, sent in
      clinux_send_file(number, descriptor, offset + Int64(sent), min(count - sent, most))
    }
  }

  /// Repeats a call until `count` bytes are written.
  func writing(
    _ count: Int,
    _ operation: String = "writing to",
    _ call: (_ number: Int32, _ sent: Int) -> Int64
  ) throws {
    var sent = 0
    do {
      try claiming(.writing, operation) {
        while sent < count {
          let result = Int(try socket.perform(.writing) { .init(call($0, sent)) })
          // Only sendfile returns 0: the file has ended.
          if result == 0 { throw NetError(.endOfStream, operation, remoteAddress) }
          sent += result
          // A plain store, because only the owner of the claim writes it.
          written.store(written.load(ordering: .relaxed) &+ result, ordering: .releasing)
        }
      }
    } catch let error as NetError {
      throw error.with(bytesWritten: sent)
    }
  }
}

// MARK: - Ends

extension Connection {
  /// Ends the stream to the peer, reads and drops what the peer still sends, and closes: so that a last answer arrives.
  ///
  /// A connection that is closed with unread bytes is reset, and the peer may lose an answer that it has not read yet.
  /// A server that refuses a request before it has read all of it ends by this call.
  ///
  /// Suspends until the peer has ended its stream or has reset it, for `time` at the most. However it ends, the
  /// connection is closed then, also after an error. If the coroutine is cancelled, it closes and throws at once. After
  /// a close it does nothing. At most 16 KiB of memory hold what is dropped, and none while the coroutine waits.
  ///
  /// - Parameter time: The longest time for which it reads. Zero or less closes at once, after the end of the stream.
  /// - Throws: ``NetError/busy`` while another coroutine writes, or reads. The cancellation error.
  ///   `CoroutineError.notInCoroutine` outside a coroutine. An error of the connection is no error here: the peer is
  ///   gone, and nothing more can reach it.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func closeLingering(for time: Duration = .seconds(2)) throws {
    defer { close() }
    do {
      try co_checkCancelled()
      try shutdownWrite()
      guard time > .zero else { return }
      try co_timeout(time) { while try discard() { try co_checkCancelled() } }
    } catch let error as NetError {
      if error == .busy { throw error }
      // It may be the reason of a cancellation as well, and so may the next one.
      try co_checkCancelled()
    } catch is TimeoutError {
      try co_checkCancelled()
      dropArrived()
    }
  }

  /// Reads and drops bytes that have arrived; returns false at the end of the stream.
  ///
  /// Suspends as a read does.
  private func discard() throws -> Bool {
    let operation = "reading the rest from"
    return try claiming(.reading, operation) {
      try socket.perform(.reading) { number in
        withUnsafeTemporaryAllocation(byteCount: 16_384, alignment: 16) { buffer in
          Self.receive(number, buffer.baseAddress.unsafelyUnwrapped, buffer.count)
        }
      }
    } > 0
  }
}

// MARK: - In a select

extension Connection {
  /// Creates a case of `co_select(biased:_:)` that is ready when a read would not wait: bytes are there, the
  /// stream has ended, or the connection is broken.
  ///
  /// Also ready when the connection is closed: then co_select throws ``NetError/closed``. The case reads nothing, and
  /// does not claim the connection, so another coroutine may read before `body` does. Bytes that a ``BufferedReader``
  /// holds do not make the case ready.
  public func onReadable<R>(_ body: @escaping () throws -> R) -> SelectCase<R> {
    socket.onReady(.reading, isReady: Socket.isReadable) { [self] code in
      if code != 0 { throw NetError(code: code, "waiting for", remoteAddress) }
      if isClosed { throw NetError(.closed, "waiting for", remoteAddress) }
      return try body()
    }
  }
}

// MARK: - Age

/// Since when a connection has waited to be served.
struct ConnectionAge: Sendable {
  private let since: UInt64

  /// Counts from the peer's last segment, if the system knows it, or from now.
  ///
  /// A connection that waits in the backlog while the server is at its limit has received its request, if at all, as
  /// its last segment. The system's clock has milliseconds, or less.
  init(of connection: Connection) {
    let now = Self.clock
    since = now - min(now, Self.timeInBacklog(connection))
  }

  var now: Duration {
    let now = Self.clock
    return .nanoseconds(Int64(clamping: now - min(now, since)))
  }

  /// A world's own clock, not that of one of its hosts: the time of the arrival is one of the world, too.
  private static var clock: UInt64 {
    if Simulated.current == nil { return CallerClock.now }
    return SimulatedWorld.current?.now ?? CallerClock.now
  }

  private static func timeInBacklog(_ connection: Connection) -> UInt64 {
    if let simulated = connection.socket.simulated as? any SimulatedStream {
      return clock - min(clock, simulated.connected)
    }
    guard connection.isTCP, let silence = connection.withNumber({ clinux_silence($0) }) else { return 0 }
    return UInt64(max(0, silence)) * 1_000_000
  }
}
