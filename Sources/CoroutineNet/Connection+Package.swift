internal import CLinux
import Coroutine
import Glibc
import Synchronization

// What other products of this package read and write with. They have their own buffers.

extension Connection {
  /// Reads once, into the memory that `room` returns at each attempt.
  ///
  /// Suspends if no byte has arrived; `beforeWaiting` is called before each wait, so that the caller can release its
  /// memory. Returns 0 at the end of the stream. In all other respects as ``read(into:)``.
  package func receive(
    beforeWaiting: () -> Void = {},
    into room: () -> UnsafeMutableRawBufferPointer
  ) throws -> Int {
    try claiming(.reading, "reading from") {
      let count = try socket.perform(.reading, beforeWaiting: beforeWaiting) { number in
        let room = room()
        return Self.receive(number, room.baseAddress.unsafelyUnwrapped, room.count)
      }
      return Int(count)
    }
  }

  /// Reads once if bytes or the end of the stream have arrived; returns nil if a read would wait.
  ///
  /// Never suspends. It asks the system, also if the poller has not told of anything yet: what has arrived decides
  /// whether a connection may be used or closed.
  package func receiveNow(into room: UnsafeMutableRawBufferPointer) throws -> Int? {
    try now(.reading, "reading from") { clinux_receive($0, room.baseAddress.unsafelyUnwrapped, room.count) }
  }

  /// Writes the first bytes of a buffer, as many as the system takes now; 0 if a write would wait.
  ///
  /// Never suspends.
  package func sendNow(_ bytes: UnsafeRawBufferPointer) throws -> Int {
    let count =
      try now(.writing, "writing to") { clinux_send($0, bytes.baseAddress.unsafelyUnwrapped, bytes.count) } ?? 0
    written.store(written.load(ordering: .relaxed) &+ count, ordering: .releasing)
    return count
  }

  /// Makes one system call; returns nil if it would wait.
  private func now(
    _ direction: WatchedDescriptor.Direction,
    _ operation: String,
    _ call: (Int32) -> Int64
  ) throws(NetError) -> Int? {
    try claim(direction, operation)
    defer { socket.releaseClaim(direction) }
    while true {
      if let code = socket.simulated?.failure, code != 0 { throw NetError(code: code, operation, remoteAddress) }
      guard let result = withNumber(call) else { throw NetError(.closed, operation, remoteAddress) }
      socket.simulated?.used(direction)
      switch result {
      case 0...: return Int(result)
      case -Int64(EAGAIN): return nil
      case -Int64(EINTR): continue
      default: throw NetError(code: Int32(truncatingIfNeeded: -result), operation, remoteAddress)
      }
    }
  }

  /// Writes all bytes of three buffers, one after the other, with one system call if the kernel takes them.
  ///
  /// As ``write(_:)-(UnsafeRawBufferPointer)``.
  package func write(
    _ first: UnsafeRawBufferPointer,
    _ second: UnsafeRawBufferPointer,
    _ third: UnsafeRawBufferPointer
  ) throws {
    try withUnsafeTemporaryAllocation(of: clinux_piece.self, capacity: 3) { pieces in
      try writing(first.count + second.count + third.count) { number, sent in
        var count = 0
        var skipped = sent
        // Without an array, which would be memory for each call.
        func add(_ buffer: UnsafeRawBufferPointer) {
          if skipped < buffer.count, let bytes = buffer.baseAddress {
            pieces[count] = clinux_piece(bytes: bytes + skipped, count: buffer.count - skipped)
            count += 1
            skipped = 0
          } else {
            skipped -= buffer.count
          }
        }
        add(first)
        add(second)
        add(third)
        return clinux_send_pieces(number, pieces.baseAddress.unsafelyUnwrapped, count)
      }
    }
  }

  /// Whether ``reset()`` was called: what was written before is incomplete.
  package var wasReset: Bool { hasReset.load(ordering: .acquiring) }

  /// Closes this end of a pair, whose other end is `inner`, so that `inner` reads what is there, and then `ECONNRESET`.
  ///
  /// The system resets a Unix socket whose peer is closed with bytes that it has not read: here is one.
  package func closeResetting(_ inner: Connection) {
    // Without the claim, which a copy or a blocked writer of `inner` holds. If there is no room, there are such bytes.
    _ = withUnsafeBytes(of: UInt8(0)) { byte in
      inner.withNumber { clinux_send($0, byte.baseAddress.unsafelyUnwrapped, 1) }
    }
    inner.socket.simulated?.used(.writing)
    close()
  }

  /// Drops what has arrived, up to a megabyte.
  ///
  /// Before a close that a limit of time has brought: with unread bytes it would reset the connection, and the peer
  /// would lose what it has not read. The limit may have passed while the process was stopped, and bytes came. Never
  /// suspends. No effect in a simulated world.
  package func dropArrived() {
    if socket.simulated != nil { return }
    withUnsafeTemporaryAllocation(byteCount: 16_384, alignment: 16) { buffer in
      var left = 64
      while left > 0,
        withNumber({ clinux_receive($0, buffer.baseAddress.unsafelyUnwrapped, buffer.count) }) ?? 0 > 0
      {
        left -= 1
      }
    }
  }

  /// The number of bytes that the system holds because the peer has not acknowledged them.
  ///
  /// Never suspends; any thread. 0 after a close, and in a simulated world.
  package var unsentCount: Int {
    if socket.simulated != nil { return 0 }
    return withNumber { number in
      var count: CInt = 0
      return ioctl(number, UInt(TIOCOUTQ), &count) < 0 ? 0 : Int(count)
    } ?? 0
  }

  /// Whether the peer has ended its output or has reset the connection, also if bytes of it are still to be read.
  ///
  /// Never suspends; any thread. False after a close.
  package var peerHasEnded: Bool {
    withNumber { number in
      // POLLRDHUP, which the C library declares for C alone.
      var query = pollfd(fd: number, events: 0x2000, revents: 0)
      return poll(&query, 1, 0) > 0
    } ?? false
  }
}
