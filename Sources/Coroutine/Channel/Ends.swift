/// The receiving side of a channel: a view that can neither send nor close.
///
/// ``Channel/receiveOnly`` makes it. It holds the channel; all views and the channel itself are one. A receiver that
/// wants no more values can ``cancel(_:)`` the channel.
public struct ReceiveChannel<Element>: Sendable {
  @usableFromInline let channel: Channel<Element>

  @inlinable
  init(_ channel: Channel<Element>) { self.channel = channel }

  /// Receives the next value, as ``Channel/receive()`` does.
  @inlinable @inline(__always)
  @available(*, noasync, message: "use `for try await`")
  public func receive() throws -> sending Element? { try channel.receive() }

  /// Receives a value if one is there, as ``Channel/tryReceive()`` does.
  @inlinable
  public func tryReceive() -> sending TryReceive<Element> { channel.tryReceive() }

  /// Receives all values that are there, and waits for the first, as ``Channel/receiveAll()`` does.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receiveAll() throws -> sending [Element] { try channel.receiveAll() }

  /// Receives `count` values, as ``Channel/receive(count:)`` does.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receive(count: Int) throws -> sending [Element] { try channel.receive(count: count) }

  /// Receives up to `count` values within a time, as ``Channel/receive(upTo:within:)`` does.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receive(upTo count: Int, within time: Duration) throws -> sending [Element]? {
    try channel.receive(upTo: count, within: time)
  }

  /// Calls `body` with each value until the end, as ``Channel/forEach(_:)`` does.
  @inlinable
  @available(*, noasync, message: "use `for try await`")
  public func forEach(_ body: (sending Element) throws -> Void) throws { try channel.forEach(body) }

  /// Closes the channel and drops its values, as ``Channel/cancel(_:)`` does: the receiver wants no more.
  public func cancel(_ cause: (any Error)? = nil) { channel.cancel(cause) }

  /// Whether the channel was closed; buffered values may still be there to receive.
  ///
  /// Any thread.
  public var isClosed: Bool { channel.isClosed }

  /// The number of buffered values at this moment.
  ///
  /// Any thread.
  public var count: Int { channel.count }

  /// The number of values that the channel buffers, and the effect of a send to a full channel.
  public var capacity: Channel<Element>.Capacity { channel.capacity }

  /// Creates a case of a select that receives, as ``Channel/onReceive(_:)`` does.
  @inlinable
  public func onReceive<R>(_ body: @escaping (sending Element?) throws -> R) -> SelectCase<R> {
    channel.onReceive(body)
  }

  /// Creates a case of a select that receives all values that are there, as ``Channel/onReceiveAll(_:)`` does.
  @inlinable
  public func onReceiveAll<R>(_ body: @escaping (sending [Element]) throws -> R) -> SelectCase<R> {
    channel.onReceiveAll(body)
  }
}

extension ReceiveChannel: AsyncSequence {
  /// Creates an iterator, for `for try await value in channel` in async code, as that of the channel itself.
  public func makeAsyncIterator() -> Channel<Element>.AsyncIterator { channel.makeAsyncIterator() }
}

// MARK: - The sending side

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
