internal import CLinux
import Coroutine
import Glibc
import Synchronization

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
  ///   ``bytesWritten`` counts them. See ``Connection`` for the errors of all operations.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func write(_ bytes: some Sequence<UInt8>) throws {
    if try bytes.withContiguousStorageIfAvailable({ try write(UnsafeRawBufferPointer($0)) }) != nil { return }
    try Array(bytes).withUnsafeBytes { try write($0) }
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
