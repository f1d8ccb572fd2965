#if NIO
import Coroutine
import NIOConcurrencyHelpers
public import NIOCore
public import NIOPosix

extension ClientBootstrap {
  /// Connects, runs `body` in a coroutine on the channel's event loop, and returns its result.
  ///
  /// Called in a coroutine of any thread, which it suspends until `body` has ended. The options of this bootstrap
  /// apply, except its channel initializer, which `configure` replaces. The channel is closed when `body` ends: after a
  /// return, when all written bytes are sent; after an error, at once.
  ///
  /// If the coroutine is cancelled while it connects, it throws at once, and the connection is closed. If it is
  /// cancelled later, `body` is cancelled too, and this function throws when `body` has ended.
  ///
  /// - Parameters:
  ///   - address: The address of the server.
  ///   - configure: Adds handlers to the channel, on its event loop, before it connects. Without it the channel reads
  ///     and writes bytes.
  ///   - body: Uses the channel.
  /// - Throws: The error of connecting; the error of `body`, or of closing the channel; the cancellation error;
  ///   `EventLoopError.shutdown` if the event loop is shut down; `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func withConnection<Inbound: Sendable, Outbound: Sendable, Output: Sendable>(
    to address: NIOCore.SocketAddress,
    configure: @escaping @Sendable (any NIOCore.Channel) throws -> Void = { _ in },
    _ body: @escaping @Sendable (NIOCoroutineChannel<Inbound, Outbound>) throws -> Output
  ) throws -> Output {
    try co_checkCancelled()
    let wrapped = NIOLockedValueBox<NIOCoroutineChannel<Inbound, Outbound>?>(nil)
    let connected = channelInitializer { channel in
      channel.eventLoop.makeCompletedFuture {
        try configure(channel)
        let connection = try NIOCoroutineChannel<Inbound, Outbound>(wrapping: channel)
        wrapped.withLockedValue { $0 = connection }
      }
    }.connect(to: address)
    let channel: any NIOCore.Channel
    do {
      channel = try co_await(connected)
    } catch {
      connected.whenSuccess { $0.close(promise: nil) }
      throw error
    }
    // The initializer has run before the channel was connected.
    guard let connection = wrapped.withLockedValue({ $0 }) else { throw ChannelError.ioOnClosedChannel }
    let job = co_launch(on: channel.eventLoop, name: "connection to \(address)") {
      let output: Output
      do {
        output = try body(connection)
      } catch {
        channel.close(promise: nil)
        throw error
      }
      try connection.close()
      return output
    }
    do {
      return try job.join()
    } catch {
      if !job.isFinished {
        // This coroutine is cancelled. It waits for the coroutine that it has launched.
        job.cancel(error)
        _ = try? co_shield { try job.join() }
      }
      // If `body` has not run, because the job was refused or got no stack, nothing else closes the channel.
      channel.close(promise: nil)
      throw error
    }
  }
}
#endif
