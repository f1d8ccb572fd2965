public import Coroutine

// What a reader has received and not returned: to look at it, to take a part, to wait for more, to hand it over.
//
// A protocol's own parser needs three calls: `withBuffered` to look, `consume` for what was understood, `fill` when
// that is not enough. A protocol that changes in the middle of its stream (CONNECT, WebSocket, STARTTLS) ends its
// reader by `takeBuffered`: the bytes after the head go to the connection's next owner, and none is lost or read twice.

extension BufferedReader {
  /// The number of bytes that the reader holds: received, and not yet returned.
  ///
  /// Never suspends.
  public var bufferedCount: Int { buffer.bytes.count }

  /// Reads what is there: the bytes that the reader holds, or else those of one read.
  ///
  /// Suspends only if the reader holds no byte and none has arrived. Bytes, the end of the stream, an error of the
  /// connection or a close resume it.
  ///
  /// - Parameter count: The largest number of bytes to return.
  /// - Returns: At least one byte, and at most `count`; an empty array at the end of the stream, and if `count` is not
  ///   positive.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public mutating func read(upTo count: Int) throws -> [UInt8] {
    try co_checkCancelled()
    return count > 0 ? try buffer.take(upTo: count, from: connection) : []
  }

  /// Calls `body` with the bytes that the reader holds, and returns its result; takes none of them.
  ///
  /// Never suspends by itself. The pointer is valid until `body` returns. ``consume(_:)`` takes what was understood.
  public func withBuffered<R>(_ body: (UnsafeRawBufferPointer) throws -> R) rethrows -> R {
    try withExtendedLifetime(buffer) { try body(buffer.bytes) }
  }

  /// Takes the first `count` of the bytes that the reader holds; traps if it holds fewer, or `count` is negative.
  ///
  /// Never suspends. Constant time.
  public mutating func consume(_ count: Int) {
    let held = bufferedCount
    if count < 0 || count > held { misuse("a reader that holds \(held) bytes was told to consume \(count)") }
    buffer.drop(count)
  }

  /// Waits until the reader holds at least one byte more than now.
  ///
  /// Suspends until bytes arrive, the stream ends, the connection breaks or is closed. The buffer grows as it must: a
  /// parser compares ``bufferedCount`` with its own limit before it asks for more.
  ///
  /// - Returns: False at the end of the stream; the bytes that the reader holds stay.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public mutating func fill() throws -> Bool {
    try co_checkCancelled()
    return try buffer.fill(from: connection)
  }

  /// Ends the reader, and returns what it has read ahead: for the next owner of the connection.
  ///
  /// Never suspends. The next owner takes these bytes first; ``init(_:startingWith:capacity:)`` makes a reader that
  /// does.
  public consuming func takeBuffered() -> [UInt8] { buffer.take(buffer.bytes.count) }

  /// Creates a case of `co_select(biased:_:)` that is ready when a read would not wait: the reader holds bytes, bytes
  /// have arrived, the stream has ended, or the connection is broken.
  ///
  /// Also ready when the connection is closed, unless the reader holds bytes: then co_select throws
  /// ``NetError/closed``. The case reads nothing.
  public func onReadable<R>(_ body: @escaping () throws -> R) -> SelectCase<R> {
    // A case of what is settled is ready at the first attempt, as any other that is ready; a timeout comes after all.
    bufferedCount > 0 ? Promise.value(()).onAwait { _ in try body() } : connection.onReadable(body)
  }

  /// Waits for the next message of a peer that may stay idle: until a byte is there, or the coroutine should finish.
  ///
  /// A server that stops or is cancelled tells its handlers to finish. A handler that waits here between two messages
  /// then ends at once, and not at the end of the time for draining. One in the middle of a message is not disturbed.
  /// Suspends until the reader holds a byte, the stream ends, the connection breaks or is closed, or `co_stopping` is
  /// settled. A byte that has arrived before the coroutine was told to finish counts first.
  ///
  /// - Returns: True if the reader holds a byte. False at the end of the stream, and if the coroutine should finish.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public mutating func waitForMessage() throws -> Bool {
    try co_checkCancelled()
    while bufferedCount == 0 {
      if let hasRead = try buffer.fillNow(from: connection) { return hasRead }
      let isStopping = try co_select(biased: true) {
        connection.onReadable { false }
        co_stopping.onAwait { _ in true }
      }
      // Bytes may have arrived with the signal: they were on their way before the peer could know of it.
      if isStopping { return try buffer.fillNow(from: connection) ?? false }
    }
    return true
  }
}
