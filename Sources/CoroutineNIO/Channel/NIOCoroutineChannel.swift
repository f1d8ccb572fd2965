#if NIO
public import NIOCore

/// A channel of SwiftNIO in straight-line code.
///
/// ```swift
/// let connection = try NIOCoroutineChannel<ByteBuffer, ByteBuffer>(wrapping: channel)
/// channel.eventLoop.co_launch {
///   while let bytes = try connection.read() { try connection.write(bytes) }
///   try connection.close()
/// }
/// ```
///
/// Only coroutines of the channel's own event loop (``NIOCore/EventLoop/co_launch(name:stack:file:line:_:)``) use it. A
/// coroutine of another scheduler traps with a message; outside a coroutine the functions throw
/// `CoroutineError.notInCoroutine`. Several coroutines may use one channel: each value goes to one reader, and each
/// write is whole.
///
/// Reads are pulled: the channel's `autoRead` is off, and a read is requested only while a coroutine waits for a value.
/// So a peer that sends faster than the coroutine reads is stopped by the system's buffers. All other options of the
/// channel are as they were; set `allowRemoteHalfClosure` to write after the peer has finished.
///
/// An error is thrown by one operation. One that the pipeline has caught is thrown by ``read()``, after all values that
/// came before it, or, if it has ended the channel, by the first of that and ``write(_:)`` or ``finish()``. So is one
/// that has ended a write.
public struct NIOCoroutineChannel<Inbound: Sendable, Outbound: Sendable>: Sendable {
  // Sound because its functions use it on the channel's event loop only, which they check.
  @usableFromInline nonisolated(unsafe) let handler: CoroutineChannelHandler<Inbound, Outbound>

  /// Makes `channel` the caller's: adds the last handler to its pipeline, and turns off `autoRead`.
  ///
  /// Called on the channel's event loop, usually in a channel initializer, where nothing was read yet; traps elsewhere,
  /// and if the channel was wrapped before.
  /// - Throws: `ChannelError.ioOnClosedChannel` if the channel is closed.
  public init(wrapping channel: any NIOCore.Channel) throws {
    guard channel.eventLoop.inEventLoop else {
      fatalError("NIOCoroutineChannel(wrapping:) must be called on the channel's event loop: in a channel initializer.")
    }
    let pipeline = channel.pipeline.syncOperations
    let name = CoroutineChannelHandler<Inbound, Outbound>.name
    if (try? pipeline.context(name: name)) != nil {
      fatalError("The channel was wrapped in a NIOCoroutineChannel before: use that one, its copies are the same.")
    }
    handler = CoroutineChannelHandler<Inbound, Outbound>(channel)
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
  /// Suspends until a value has been read; the handler's callback resumes it, on the same stack. Flushes before it
  /// waits. Values that were read before the peer closed, or before an error, come first.
  /// - Throws: An error of the channel; `ChannelError.ioOnClosedChannel` after ``close()``; the cancellation error, and
  ///   then no value is consumed.
  @inlinable
  @available(*, noasync, message: "use NIOAsyncChannel")
  public func read() throws -> Inbound? { try handler.read() }

  /// Writes a value.
  ///
  /// Suspends while the channel is not writable, after a flush. The value is flushed before this channel's next wait,
  /// and at the latest when the event loop gets its thread back. Returning does not mean that the peer has received it;
  /// an error of writing is thrown by a later operation.
  /// - Throws: An error of the channel; `ChannelError.outputClosed` after ``finish()``;
  ///   `ChannelError.ioOnClosedChannel` if the channel is closed; the cancellation error, and then nothing is written.
  @inlinable
  @available(*, noasync, message: "use NIOAsyncChannel")
  public func write(_ value: Outbound) throws { try handler.write(value) }

  /// Ends the output: the peer reads the end of input after all that was written.
  ///
  /// Reading goes on. Suspends until everything is written and the output is closed. If the coroutine is cancelled
  /// meanwhile, it throws, and the output is closed all the same.
  /// - Throws: `ChannelError.operationUnsupported` if the channel has no half-closure; as ``write(_:)``.
  @available(*, noasync, message: "use NIOAsyncChannel")
  public func finish() throws { try handler.finish() }

  /// Closes the channel after everything is written.
  ///
  /// Suspends until then. From the call on, ``read()`` and ``write(_:)`` throw `ChannelError.ioOnClosedChannel`, in
  /// other coroutines as well, and values that were not taken are dropped. If the coroutine is cancelled, before or
  /// meanwhile, the channel is closed at once. A closed channel may be closed again.
  /// - Throws: An error of the channel that no operation has thrown; the cancellation error. The channel is closed in
  ///   both cases.
  @available(*, noasync, message: "use NIOAsyncChannel")
  public func close() throws { try handler.close() }
}
#endif
