#if NIO
import Coroutine
public import NIOCore

/// The last handler of a coroutine's channel: stores the received values, and wakes the waiting coroutines.
///
/// It wakes them at the end of a read, not at each value. By then the handlers before it have returned from their
/// callbacks, and a coroutine that responds to each of several values has its responses flushed together.
///
/// It stores the values as NIO passes them, and `read` and `write` of NIOCoroutineChannel convert them. NIO calls a
/// handler through its protocol, so the code of a generic handler would look up its types at run time for each value.
@usableFromInline
final class CoroutineChannelHandler: ChannelCore, ChannelInboundHandler {
  @usableFromInline typealias InboundIn = NIOAny
  @usableFromInline typealias OutboundOut = NIOAny

  static let name = "CoroutineChannel"

  /// The values that were received and not taken; `available` is their number.
  @exclusivity(unchecked) private var values = ReceivedValues()

  // MARK: Operations: after `begin`

  @usableFromInline
  func read() throws -> NIOAny? {
    while true {
      if isClosedHere { throw ChannelError.ioOnClosedChannel }
      if failure != nil {
        if valuesBeforeFailure == 0 { try throwFailure() }
        valuesBeforeFailure &-= 1
      }
      if let value = values.popFirst() {
        available &-= 1
        return value
      }
      if inputHasEnded { return nil }
      try waitForValue()
      try goOn()
    }
  }

  @usableFromInline
  func write(_ value: NIOAny) throws {
    while true {
      try throwOutputFailure()
      try requireOutput()
      if channel.isWritable { break }
      try waitUntilWritable()
      try goOn()
    }
    guard let context else { throw ChannelError.ioOnClosedChannel }
    let promise = beginWrite()
    context.write(value, promise: promise)
    // A handler that refuses the value, as an encoder may, has failed the promise by now.
    try throwOutputFailure()
  }

  // MARK: Callbacks

  @usableFromInline
  func handlerAdded(context: ChannelHandlerContext) { self.context = context }

  @usableFromInline
  func handlerRemoved(context: ChannelHandlerContext) {
    self.context = nil
    inCallback { becameInactive() }
  }

  @usableFromInline
  func channelActive(context: ChannelHandlerContext) {
    inCallback {
      becameActive()
      context.fireChannelActive()
    }
  }

  @usableFromInline
  func channelInactive(context: ChannelHandlerContext) {
    inCallback {
      becameInactive()
      context.fireChannelInactive()
    }
  }

  @usableFromInline
  func channelRead(context: ChannelHandlerContext, data: NIOAny) {
    if isClosedHere { return }
    values.append(data)
    available += 1
  }

  @usableFromInline
  func channelReadComplete(context: ChannelHandlerContext) {
    readCompleted()
  }

  @usableFromInline
  func channelWritabilityChanged(context: ChannelHandlerContext) {
    inCallback {
      writabilityChanged()
      context.fireChannelWritabilityChanged()
    }
  }

  @usableFromInline
  func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
    inCallback {
      switch event as? ChannelEvent {
      case .inputClosed: inputEnded()
      case .outputClosed: outputEnded()
      case nil: break
      }
      context.fireUserInboundEventTriggered(event)
    }
  }

  /// Stores the error for a coroutine, which gets it after this callback (ChannelCore, invariant 4).
  @usableFromInline
  func errorCaught(context: ChannelHandlerContext, error: any Error) { errorCaught(error) }
}

/// The types of a channel's values, for NIO's conversions from and to `NIOAny`; no object of it is ever created.
@usableFromInline
final class ChannelValues<Inbound, Outbound>: ChannelInboundHandler {
  @usableFromInline typealias InboundIn = Inbound
  @usableFromInline typealias OutboundOut = Outbound

  private init() {}
}
#endif
