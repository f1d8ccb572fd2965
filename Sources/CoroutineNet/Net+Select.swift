public import Coroutine
import Glibc

extension Listener {
  /// Creates a case of `co_select(biased:_:)` that accepts a connection.
  ///
  /// Ready when a connection waits, and when the listener is closed: then co_select throws ``NetError/closed``. The
  /// connection is accepted after the case was selected. If another coroutine has been faster, the body waits for the
  /// next one.
  public func onAccept<R>(_ body: @escaping (Connection) throws -> R) -> SelectCase<R> {
    socket.onReady(.reading, isReady: isReadable) { [self] code in
      if code != 0 { throw NetError(code: code, "accepting at", address) }
      return try body(try accept())
    }
  }
}

extension Connection {
  /// Creates a case of `co_select(biased:_:)` that is ready when a read would not wait: bytes are there, the
  /// stream has ended, or the connection is broken.
  ///
  /// Also ready when the connection is closed: then co_select throws ``NetError/closed``. The case reads nothing, and
  /// is no claim: another coroutine may read meanwhile. Bytes that a ``BufferedReader`` holds do not count.
  public func onReadable<R>(_ body: @escaping () throws -> R) -> SelectCase<R> {
    socket.onReady(.reading, isReady: isReadable) { [self] code in
      if code != 0 { throw NetError(code: code, "waiting for", remoteAddress) }
      if isClosed { throw NetError(.closed, "waiting for", remoteAddress) }
      return try body()
    }
  }
}

/// Whether a descriptor can be read now.
///
/// Never blocks.
@Sendable
private func isReadable(_ number: Int32) -> Bool {
  var query = pollfd(fd: number, events: Int16(POLLIN), revents: 0)
  return poll(&query, 1, 0) != 0
}
