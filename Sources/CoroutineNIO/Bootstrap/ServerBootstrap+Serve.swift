#if NIO
import Coroutine
public import NIOCore
public import NIOPosix

extension ServerBootstrap {
  /// Serves until it is cancelled: runs `handle` for each accepted channel, in a coroutine on the channel's event loop.
  ///
  /// Called in a coroutine of any thread, which it suspends. The options of this bootstrap apply, but `configure` takes
  /// the place of its child channel initializer. A channel is closed when `handle` ends: after a return when all that
  /// was written is sent, after an error at once.
  ///
  /// When the coroutine is cancelled, or the deadline of a `co_timeout(_:_:)` passes, the server stops accepting.
  /// Handlers go on for `drain`; those that have not ended then are cancelled. It returns, without an error, when the
  /// last of them has ended. It ends in the same way if the listening channel is closed, and if the event loops are
  /// shut down, which cancels the handlers.
  ///
  /// - Parameters:
  ///   - address: The address to serve. With port 0 the system chooses one.
  ///   - drain: How long handlers may finish after the end.
  ///   - onListening: Receives the listening channel when it is bound: for its address.
  ///   - onError: Receives an error of `configure` or `handle`, with the channel; on the channel's event loop. If it is
  ///     nil, an error of a handler is an unhandled error, which `CoroutineRuntime.onUnhandledError` receives. It never
  ///     ends the server.
  ///   - configure: Adds handlers to an accepted channel, on its event loop, before the first read.
  ///   - handle: Serves one channel.
  /// - Throws: The error of binding; the cancellation error, without serving, if the coroutine is cancelled before;
  ///   `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "start a Task, or await the `value` of a coroutine that does this")
  public func serve<Inbound: Sendable, Outbound: Sendable>(
    to address: NIOCore.SocketAddress,
    drain: Duration = .seconds(10),
    onListening: ((any NIOCore.Channel) -> Void)? = nil,
    onError: (@Sendable (any Error, any NIOCore.Channel) -> Void)? = nil,
    configure: @escaping @Sendable (any NIOCore.Channel) throws -> Void,
    _ handle: @escaping @Sendable (NIOCoroutineChannel<Inbound, Outbound>) throws -> Void
  ) throws {
    try co_checkCancelled()
    let service = ChannelService(onError)
    let bound = childChannelInitializer { channel in
      channel.eventLoop.makeCompletedFuture {
        try service.accept(channel, configure, handle)
      }
    }.bind(to: address)
    let listener: any NIOCore.Channel
    do {
      listener = try co_await(bound)
    } catch {
      bound.whenSuccess { $0.close(promise: nil) }
      throw error
    }
    onListening?(listener)
    // Ends by a cancellation, or because the listener is closed.
    try? co_await(listener.closeFuture)
    co_shield {
      listener.close(promise: nil)
      try? co_await(listener.closeFuture)
      service.end(after: drain)
    }
  }
}
#endif
