public import Coroutine

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
