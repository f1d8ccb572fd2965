public import Coroutine

extension Listener {
  /// Creates a case of `co_select(biased:_:)` that accepts a connection.
  ///
  /// Ready when a connection is in the backlog, and when the listener is closed: then co_select throws
  /// ``NetError/closed``. The connection is accepted after the case was selected. If another coroutine has accepted it
  /// before, the case suspends until the next connection.
  public func onAccept<R>(_ body: @escaping (Connection) throws -> R) -> SelectCase<R> {
    socket.onReady(.reading, isReady: Socket.isReadable) { [self] code in
      if code != 0 { throw NetError(code: code, "accepting at", address) }
      return try body(try accept())
    }
  }
}
