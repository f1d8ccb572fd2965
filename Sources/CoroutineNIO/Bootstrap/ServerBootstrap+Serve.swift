#if NIO
@_spi(Hosting) import Coroutine
public import NIOCore
public import NIOPosix

extension ServerBootstrap {
  /// Serves until it is cancelled: runs `handle` for each accepted channel, in a coroutine on the channel's event loop.
  ///
  /// Called in a coroutine of any thread, which it suspends until the server has ended. The options of this bootstrap
  /// apply, except its child channel initializer, which `configure` replaces. A channel is closed when `handle` ends:
  /// after a return, when all written bytes are sent; after an error, at once. An error that is pending when `handle`
  /// returns is dropped: it belongs to something that `handle` did not wait for.
  ///
  /// When the coroutine is cancelled or told to finish (`co_stopping`), or the deadline of a `co_timeout` passes,
  /// the server stops accepting. It tells the handlers to finish in both ways that there are: `co_isStopping` becomes
  /// true in their coroutines, and `co_stopping` is settled; and each channel's pipeline gets NIO's
  /// `ChannelShouldQuiesceEvent`. Handlers may continue for `drain`. Those that have not ended by then are cancelled; a
  /// cancellation that comes after a stop cancels them at once.
  /// The function returns, without an error, when the last handler has ended. The server ends in the same way if the
  /// listening channel is closed, and if the event loops are shut down, which cancels the handlers.
  ///
  /// If no descriptor is free, or no memory for a connection, the server calls `onError` once, and tries to accept once
  /// a second. The connections wait in the system's queue.
  ///
  /// - Parameters:
  ///   - address: The address to serve. With port 0 the system chooses one.
  ///   - drain: The time in which handlers may finish after the server was cancelled or stopped.
  ///   - onListening: Receives the listening channel, which has the bound address. A client that knows the address may
  ///     be served before.
  ///   - onError: Receives an error of `configure` or `handle`, with the channel, and an error of accepting, with the
  ///     listening channel; on the channel's event loop. If it is nil, an error of a handler is an unhandled error,
  ///     which `CoroutineRuntime.unhandledErrorHandler` receives, and the others are dropped. None ends the server,
  ///     except an error of accepting that is no shortage: NIO closes the listening channel.
  ///   - configure: Adds handlers to an accepted channel, on its event loop, before the first read. Without it the
  ///     channel reads and writes bytes.
  ///   - handle: Serves one channel.
  /// - Throws: The error of binding; the cancellation error, without serving, if the coroutine is cancelled before;
  ///   `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "start a Task, or await the `value` of a coroutine that does this")
  public func serve<Inbound: Sendable, Outbound: Sendable>(
    to address: NIOCore.SocketAddress,
    drain: Duration = .seconds(10),
    onListening: ((any NIOCore.Channel) -> Void)? = nil,
    onError: (@Sendable (any Error, any NIOCore.Channel) -> Void)? = nil,
    configure: @escaping @Sendable (any NIOCore.Channel) throws -> Void = { _ in },
    _ handle: @escaping @Sendable (NIOCoroutineChannel<Inbound, Outbound>) throws -> Void
  ) throws {
    try co_checkCancelled()
    let service = ChannelService(onError)
    var isBound = false
    try Scope.serve(draining: drain, until: service.waitForChannels) { handlers, outside in
      let binding = childChannelInitializer { channel in
        channel.eventLoop.makeCompletedFuture { try service.accept(channel, into: handlers, configure, handle) }
      }.bind(to: address).flatMapThrowing { listener in
        // On the listener's loop. NIO repeats an accept that has failed, so the handler sees each error that lasts.
        try listener.pipeline.syncOperations.addHandler(ShortageHandler { onError?($0, $1) }, position: .first)
        return listener
      }
      let listener: any NIOCore.Channel
      do {
        listener = try outside.launch(name: "bind") { try co_await(binding) }.join()
      } catch {
        // Also if the child has never run. A listener that is bound all the same may have accepted channels.
        binding.whenSuccess { $0.close(promise: nil) }
        handlers.cancel()
        throw error
      }
      isBound = true
      onListening?(listener)
      // Ends by a cancellation, a stop, or because the listener is closed: perhaps by the shutdown of its loop, which
      // must not be called any more.
      try? outside.launch(name: "accept") { try Self.waitForEnd(listener) }.join()
      if listener.isActive {
        listener.close(promise: nil)
        try? co_await(listener.closeFuture)
      }
    }
    // A cancellation is the usual end of a server that has begun, and only of that.
    if !isBound { try co_checkCancelled() }
  }

  private static func waitForEnd(_ listener: any NIOCore.Channel) throws {
    try co_select {
      listener.closeFuture.onAwait { _ in }
      co_stopping.onAwait { _ in }
    }
  }
}
#endif
