internal import CLinux
import Coroutine
import Glibc

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
    } catch is TimeoutError { try co_checkCancelled() }
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
