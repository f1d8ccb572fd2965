/// The sending side of a channel: a view that cannot receive.
///
/// ``Channel/sendOnly`` makes it. It holds the channel; all views and the channel itself are one.
public struct SendChannel<Element>: Sendable {
  @usableFromInline let channel: Channel<Element>

  @inlinable
  init(_ channel: Channel<Element>) { self.channel = channel }

  /// Sends a value, as ``Channel/send(_:)`` does.
  @inlinable @inline(__always)
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func send(_ element: consuming sending Element) throws { try channel.send(element) }

  /// Sends a value if that needs no wait, as ``Channel/trySend(_:)`` does.
  @inlinable
  public func trySend(_ element: consuming sending Element) -> TrySend { channel.trySend(element) }

  /// Closes the channel, as ``Channel/close(_:)`` does.
  @discardableResult
  public func close(_ cause: (any Error)? = nil) -> Bool { channel.close(cause) }

  /// Whether the channel was closed.
  ///
  /// Any thread.
  public var isClosed: Bool { channel.isClosed }

  /// The number of values that the channel buffers, and the effect of a send to a full channel.
  public var capacity: Channel<Element>.Capacity { channel.capacity }

  /// Creates a case of a select that sends, as ``Channel/onSend(_:_:)`` does.
  @inlinable
  public func onSend<R>(_ element: Element, _ body: @escaping () throws -> R) -> SelectCase<R>
  where Element: Sendable { channel.onSend(element, body) }
}

extension Channel {
  /// The channel as one that only sends, to hand to code that must not receive.
  @inlinable public var sendOnly: SendChannel<Element> { SendChannel(self) }
  /// The channel as one that only receives, to hand to code that must not send or close.
  @inlinable public var receiveOnly: ReceiveChannel<Element> { ReceiveChannel(self) }
}
