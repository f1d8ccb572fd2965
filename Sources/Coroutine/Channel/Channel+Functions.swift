// `send` and `trySend` as functions, as in `values.forEach(channel.send)`. Swift 6.3 refuses a function with a
// `sending` parameter where one without is wanted, also if the values are Sendable. No call chooses these: they are
// disfavoured.

extension Channel where Element: Sendable {
  /// Sends a value as ``send(_:)`` does, for programs that pass it as a function.
  @inlinable @_disfavoredOverload @_documentation(visibility: internal)
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func send(_ element: consuming Element) throws { try send(element) }

  /// Sends a value as ``trySend(_:)`` does, for programs that pass it as a function.
  @inlinable @_disfavoredOverload @_documentation(visibility: internal)
  public func trySend(_ element: consuming Element) -> TrySend { trySend(element) }
}
