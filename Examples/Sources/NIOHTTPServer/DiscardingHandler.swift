import NIOCore

/// Drops what the client sends while the connection ends.
///
/// It is in front of the decoder. After a request to upgrade, the decoder stores all further bytes without a limit.
/// After an error, it reports a second error for each read.
///
/// Everything here is accessed on the event loop: by callbacks, and by the connection's coroutine, which sets the flag
/// once.
final class DiscardingHandler: ChannelInboundHandler {
  typealias InboundIn = NIOAny
  typealias InboundOut = NIOAny

  var isDiscarding = false

  func channelRead(context: ChannelHandlerContext, data: NIOAny) {
    if !isDiscarding { context.fireChannelRead(data) }
  }
}
