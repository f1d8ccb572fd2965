#if NIO
import Coroutine
public import NIOCore

/// The last handler of a coroutine's channel: stores what was read, and wakes the coroutines that wait.
///
/// It wakes at the end of a read, not at each value: then the handlers before it have returned from their callbacks,
/// and a coroutine that writes an answer to each of several values has them flushed together.
@usableFromInline
final class CoroutineChannelHandler<Inbound: Sendable, Outbound: Sendable>: ChannelCore, ChannelInboundHandler {
  @usableFromInline typealias InboundIn = Inbound
  @usableFromInline typealias OutboundOut = Outbound

  static var name: String { "CoroutineChannel" }

  /// What was read and not taken; `available` is its count.
  @usableFromInline var values = CircularBuffer<Inbound>(initialCapacity: 4)

  // MARK: Operations

  @inlinable
  func read() throws -> Inbound? {
    while true {
      try begin()
      if isClosedHere { throw ChannelError.ioOnClosedChannel }
      if failure != nil {
        if valuesBeforeFailure == 0 { try throwFailure() }
        valuesBeforeFailure &-= 1
      }
      if !values.isEmpty {
        available &-= 1
        return values.removeFirst()
      }
      if inputHasEnded { return nil }
      try waitForValue()
    }
  }

  @inlinable
  func write(_ value: Outbound) throws {
    while true {
      try begin()
      try throwOutputFailure()
      try requireOutput()
      if channel.isWritable { break }
      try waitUntilWritable()
    }
    guard let context else { throw ChannelError.ioOnClosedChannel }
    let promise = beginWrite()
    context.write(Self.wrapOutboundOut(value), promise: promise)
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
    values.append(Self.unwrapInboundIn(data))
    available += 1
  }

  @usableFromInline
  func channelReadComplete(context: ChannelHandlerContext) {
    inCallback { readCompleted() }
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

  /// Ends here: a coroutine gets the error, after this callback (ChannelCore, invariant 4).
  @usableFromInline
  func errorCaught(context: ChannelHandlerContext, error: any Error) { errorCaught(error) }
}
#endif
