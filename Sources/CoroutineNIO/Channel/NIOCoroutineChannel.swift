#if NIO
public import NIOCore

/// A channel of SwiftNIO in straight-line code.
///
/// ```swift
/// let connection = try NIOCoroutineChannel<ByteBuffer, ByteBuffer>(wrapping: channel)
/// co_launch(on: channel.eventLoop) {
///   while let bytes = try connection.read() { try connection.write(bytes) }
///   try connection.close()
/// }
/// ```
///
/// Usually coroutines of the channel's own event loop use it, which
/// ``NIOCore/EventLoop/co_launch(name:stack:start:file:line:_:)`` launches. For a coroutine of another scheduler each
/// operation takes two changes of threads; outside a coroutine the functions throw `CoroutineError.notInCoroutine`.
/// Several coroutines may use one channel: each value goes to one reader, and each write is whole.
///
/// Reads are pulled: the channel's `autoRead` is off, and a read is requested only while a coroutine waits for a value.
/// So a peer that sends faster than the coroutine reads is stopped when the system's buffers are full. The other
/// options of the channel do not change; set `allowRemoteHalfClosure` to write after the peer has finished.
///
/// Each error is thrown once, by one operation, unless an earlier one is still to be thrown; then it is dropped:
/// - If the pipeline has caught the error and the channel lives, ``read()`` throws it, after all values that arrived
///   before it.
/// - If the error has ended the channel or a write, the first call of ``write(_:)`` or ``finish()`` throws it, or
///   ``read()`` after all those values.
public struct NIOCoroutineChannel<Inbound: Sendable, Outbound: Sendable>: Sendable {
  // Sound because its functions use it on the channel's event loop only, except `channel` and what `runsCaller` reads,
  // which are constants.
  @usableFromInline nonisolated(unsafe) let handler: CoroutineChannelHandler

  /// Wraps `channel`: adds the last handler to its pipeline, and turns off `autoRead`.
  ///
  /// Called on the channel's event loop, usually in a channel initializer, before the first read. It traps on another
  /// thread, and if the channel was wrapped before. Never suspends.
  /// - Throws: `ChannelError.ioOnClosedChannel` if the channel is closed.
  public init(wrapping channel: any NIOCore.Channel) throws {
    guard channel.eventLoop.inEventLoop else {
      fatalError("NIOCoroutineChannel(wrapping:) must be called on the channel's event loop: in a channel initializer.")
    }
    let pipeline = channel.pipeline.syncOperations
    let name = CoroutineChannelHandler.name
    if (try? pipeline.context(name: name)) != nil {
      fatalError("The channel was wrapped in a NIOCoroutineChannel before: use that one, its copies are the same.")
    }
    handler = CoroutineChannelHandler(channel)
    try pipeline.addHandler(handler, name: name)
    if let options = channel.syncOptions {
      try options.setOption(.autoRead, value: false)
    } else {
      channel.setOption(.autoRead, value: false).whenFailure { channel.pipeline.fireErrorCaught($0) }
    }
  }

  /// The channel: for its addresses, its options and its allocator.
  public var channel: any NIOCore.Channel { handler.channel }

  /// Receives the next value; nil at the end of input.
  ///
  /// Flushes, and suspends, until a value has arrived; the handler's callback resumes the coroutine. Values that
  /// arrived before the peer closed, or before an error, are returned first.
  /// - Throws: An error of the channel; `ChannelError.ioOnClosedChannel` after ``close()``; the cancellation error, and
  ///   then no value is consumed.
  @inlinable
  @available(*, noasync, message: "use NIOAsyncChannel")
  public func read() throws -> Inbound? {
    if try !handler.begin() { return try handler.onLoop { try read() } }
    return try handler.read().map { ChannelValues<Inbound, Outbound>.unwrapInboundIn($0) }
  }

  /// Writes a value.
  ///
  /// Flushes, and suspends, while the channel is not writable. The value is flushed when the event loop's current drain
  /// ends, which is soon after the coroutine waits for anything. The peer may not have received the value when the call
  /// returns; a later operation throws an error of writing. If a handler refuses the value at once, as an encoder may,
  /// this call throws the error.
  /// - Throws: An error of the channel; `ChannelError.outputClosed` after ``finish()``;
  ///   `ChannelError.ioOnClosedChannel` if the channel is closed; the cancellation error, and then nothing is written.
  @inlinable
  @available(*, noasync, message: "use NIOAsyncChannel")
  public func write(_ value: Outbound) throws {
    if try !handler.begin() { return try handler.onLoop { try write(value) } }
    try handler.write(ChannelValues<Inbound, Outbound>.wrapOutboundOut(value))
  }

  /// Ends the output: the peer reads the end of input after all written values.
  ///
  /// Suspends until everything is written and the output is closed. Reading remains possible. If the coroutine is
  /// cancelled while it waits, it throws, and the output is closed nevertheless.
  /// - Throws: `ChannelError.operationUnsupported` if the channel has no half-closure; as ``write(_:)``.
  @available(*, noasync, message: "use NIOAsyncChannel")
  public func finish() throws {
    if handler.runsCaller { try handler.finish() } else { try handler.onLoop { try finish() } }
  }

  /// Closes the channel after everything is written.
  ///
  /// Suspends until the channel is closed. From the call on, ``read()`` and ``write(_:)`` throw
  /// `ChannelError.ioOnClosedChannel`, in other coroutines as well, and values that were not taken are dropped. If the
  /// coroutine is cancelled, before the call or while it waits, the channel is closed at once. A second call has no
  /// effect.
  /// - Throws: An error of the channel that no operation has thrown; the cancellation error. The channel is closed in
  ///   both cases.
  @available(*, noasync, message: "use NIOAsyncChannel")
  public func close() throws {
    if handler.runsCaller { try handler.close() } else { try handler.closeOnLoop { try close() } }
  }
}
#endif
