internal import CLinux
import Coroutine
import Glibc
import Synchronization

// A write continues until the kernel has taken everything. If it ends before, what is gone is gone: the peer may have
// it.
//
// What the caller learns. A `NetError` has the number in `bytesWritten`. A cancellation, or a deadline, must keep its
// own error, by which scopes and timeouts recognise it; for these, and in general, the connection counts: the
// difference of `bytesWritten` before and after is exact. After such an end the stream stands in the middle of what was
// written. The connection is not closed by that: only the caller knows whether the rest can follow. Whoever does not
// continue closes.

extension Connection {
  /// The number of bytes that the kernel has taken from all writes so far, those of failed and cancelled ones included.
  ///
  /// After a cancelled write, the difference says how many of its bytes had gone; the caller may write the rest, or
  /// must close, because the peer has an incomplete message. Any thread.
  public var bytesWritten: Int { written.load(ordering: .acquiring) }

  /// Writes all of `bytes`, in order.
  ///
  /// Suspends while the peer does not read and the system's buffer is full. It returns when the system has taken the
  /// last byte, not when the peer has read it.
  ///
  /// - Throws: ``NetError``: `EPIPE` or `ECONNRESET` if the peer has closed; its ``NetError/bytesWritten`` is the
  ///   number of bytes that had gone. The cancellation error, also in the middle; then ``bytesWritten`` tells how many
  ///   had gone. See ``Connection`` for what all operations throw.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func write(_ bytes: some Sequence<UInt8>) throws {
    if try bytes.withContiguousStorageIfAvailable({ try write(UnsafeRawBufferPointer($0)) }) != nil { return }
    try Array(bytes).withUnsafeBytes { try write($0) }
  }

  /// Writes all of a buffer, as ``write(_:)`` does; the buffer must not change meanwhile.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func write(_ buffer: UnsafeRawBufferPointer) throws {
    try writing(buffer.count) { number, sent in
      clinux_send(number, buffer.baseAddress.unsafelyUnwrapped + sent, buffer.count - sent)
    }
  }

  /// Writes all of several buffers, one after the other, by one system call where the system takes that many at once.
  ///
  /// In all other respects it behaves as ``write(_:)`` does.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func write(_ buffers: [[UInt8]]) throws {
    var total = 0
    for buffer in buffers { total += buffer.count }
    // The first buffer that has not gone completely, and the bytes before it.
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
          // Sound because `buffers` holds the storage, which does not move while nobody changes it.
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
  /// Suspends as ``write(_:)`` does; but if the file's bytes are not in memory, the thread waits for the disk. The
  /// position of `descriptor` does not change. It stays the caller's, and must stay open.
  ///
  /// - Throws: ``NetError/endOfStream`` if the file ends before; `EINVAL`, `ESPIPE` or `EBADF` if `descriptor` is no
  ///   file that can be sent. Each says in ``NetError/bytesWritten`` how many bytes had gone.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func sendFile(_ descriptor: Int32, offset: Int64, count: Int) throws {
    let operation = "sending a file to"
    guard count >= 0, offset >= 0, !offset.addingReportingOverflow(Int64(count)).overflow else {
      throw NetError(code: EINVAL, operation, remoteAddress)
    }
    // At once: so much that the call hardly counts, and so little that a fast peer does not keep the thread for long.
    let most = 1 << 20
    try writing(count, operation) { number, sent in
      clinux_send_file(number, descriptor, offset + Int64(sent), min(count - sent, most))
    }
  }

  /// Repeats a call until `count` bytes have gone.
  private func writing(
    _ count: Int,
    _ operation: String = "writing to",
    _ call: (_ number: Int32, _ sent: Int) -> Int64
  ) throws {
    var sent = 0
    do {
      try claiming(.writing, operation) {
        while sent < count {
          let result = Int(try socket.perform(.writing) { .init(call($0, sent)) })
          // Only a file can end too early.
          if result == 0 { throw NetError(.endOfStream, operation, remoteAddress) }
          sent += result
          // Not an addition: only the claim's owner writes it.
          written.store(written.load(ordering: .relaxed) &+ result, ordering: .releasing)
        }
      }
    } catch let error as NetError {
      throw error.after(bytesWritten: sent)
    }
  }
}
