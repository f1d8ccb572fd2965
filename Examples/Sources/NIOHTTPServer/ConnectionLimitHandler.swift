import NIOCore

/// Pauses a listening channel while the server has its largest number of connections.
///
/// It is in the pipeline of the listener, and holds back the listener's next read. So further connections wait in the
/// system's queue, and are accepted when one has ended. A client that waits there costs the server nothing; a response
/// 503 would cost a connection for each attempt, and clients would repeat it. `Server.run` of CoroutineNet does the
/// same. The listener accepts one connection for each read, so the limit is exact.
///
/// Everything here is accessed on the listener's event loop.
final class ConnectionLimitHandler: ChannelDuplexHandler {
  typealias InboundIn = any Channel
  typealias OutboundIn = Never

  private let limit: Int
  private var count = 0
  private var isHoldingBack = false
  /// Nil when the listener is closed.
  private var context: ChannelHandlerContext?

  init(_ limit: Int) { self.limit = max(1, limit) }

  func handlerAdded(context: ChannelHandlerContext) { self.context = context }

  func handlerRemoved(context: ChannelHandlerContext) { self.context = nil }

  func channelRead(context: ChannelHandlerContext, data: NIOAny) {
    count += 1
    Self.unwrapInboundIn(data).closeFuture.hop(to: context.eventLoop).assumeIsolated().whenComplete { _ in self.ended()
    }
    context.fireChannelRead(data)
  }

  func read(context: ChannelHandlerContext) {
    if count < limit { context.read() } else { isHoldingBack = true }
  }

  private func ended() {
    count -= 1
    if isHoldingBack {
      isHoldingBack = false
      context?.read()
    }
  }
}
