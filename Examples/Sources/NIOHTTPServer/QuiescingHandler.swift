import NIOCore
import NIOHTTP1

/// Ends an idle connection when the server stops.
///
/// The server's end sends NIO's `ChannelShouldQuiesceEvent` through the pipeline. If the coroutine waits for a request
/// and no head has arrived, the handler reports the end of input to it: its read returns nil, and it closes. Otherwise
/// the coroutine learns of the stop when it writes the head of its response. Parts that arrive after the reported end
/// are dropped: a request that nobody was going to answer must not begin.
///
/// Everything here is accessed on the event loop: by callbacks, and by the connection's coroutine. A head is counted
/// when it arrives, before the coroutine runs. So a request that has arrived is never cut off from its body.
final class QuiescingHandler: ChannelInboundHandler {
  typealias InboundIn = HTTPServerRequestPart
  typealias InboundOut = HTTPServerRequestPart

  private(set) var isStopping = false
  /// Whether the coroutine waits for a head.
  private var isWaiting = false
  /// The heads that have arrived and that the coroutine has not taken.
  private var heads = 0
  private var hasEndedInput = false

  func channelRead(context: ChannelHandlerContext, data: NIOAny) {
    if hasEndedInput { return }
    if case .head = Self.unwrapInboundIn(data) { heads += 1 }
    context.fireChannelRead(data)
  }

  func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
    guard event is ChannelShouldQuiesceEvent else { return context.fireUserInboundEventTriggered(event) }
    isStopping = true
    if isWaiting, heads == 0 {
      hasEndedInput = true
      context.fireUserInboundEventTriggered(ChannelEvent.inputClosed)
    }
  }

  /// Runs `read`, which waits for a head.
  func waiting<Output>(_ read: () throws -> Output) rethrows -> Output {
    isWaiting = true
    defer { isWaiting = false }
    return try read()
  }

  func tookHead() { heads -= 1 }
}
