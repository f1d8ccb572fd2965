#if NIO
import Glibc
import NIOCore

// Pauses a listener that cannot accept, because descriptors, buffers or memory are short.
//
// The connection that could not be accepted stays in the system's queue, so the listener stays readable, and NIO keeps
// its read outstanding. So NIO accepts, fails and reports again in each tick. NIO's AcceptBackoffHandler does not
// change that: it delays a read that is requested, and after such an error no read is requested.
//
//   ACCEPTING --- shortage: reported ---> PAUSED -- a second has passed --> RETRYING
//       ^                                   ^                                 |
//       |                                   +------------ shortage -----------+
//       +---------------------- a connection is accepted ---------------------+
//
// Invariants
//  1. In PAUSED one timer is pending, and NIO does not watch the descriptor. Turning off `autoRead` ends the watching,
//     but only if it was on, so it is turned on first. If another handler requests a read in PAUSED, the next error
//     ends the watching again.
//  2. A retry continues the outstanding read, and requests no other. So a handler that holds back reads, to limit the
//     connections, keeps its limit: it has passed on that read.
//  3. A shortage is reported once, in the state ACCEPTING. All other errors end the listener, and with it the server,
//     and are reported too, except that a client has left the queue.
//
// Everything here is accessed on the listener's event loop.
final class ShortageHandler: ChannelInboundHandler {
  typealias InboundIn = NIOAny
  typealias InboundOut = NIOAny

  /// The time between two attempts.
  private static let pause = TimeAmount.seconds(1)

  private enum State { case accepting, paused, retrying }

  private var state = State.accepting
  private let onError: (any Error, any NIOCore.Channel) -> Void

  init(_ onError: @escaping (any Error, any NIOCore.Channel) -> Void) { self.onError = onError }

  func channelRead(context: ChannelHandlerContext, data: NIOAny) {
    state = .accepting
    context.fireChannelRead(data)
  }

  func errorCaught(context: ChannelHandlerContext, error: any Error) {
    if let error = error as? IOError {
      if Self.isShortage(error.errnoCode) {
        pause(context, error)
      } else if error.errnoCode != ECONNABORTED {
        onError(error, context.channel)
      }
    }
    context.fireErrorCaught(error)
  }

  /// The errors after which NIO keeps a listener open, except that a client has left the queue.
  private static func isShortage(_ code: CInt) -> Bool { [EMFILE, ENFILE, ENOBUFS, ENOMEM].contains(code) }

  private func pause(_ context: ChannelHandlerContext, _ error: IOError) {
    guard let options = context.channel.syncOptions else { return }
    let readsByItself: Bool
    do {
      readsByItself = try options.getOption(.autoRead)
      try options.setOption(.autoRead, value: true)
      try options.setOption(.autoRead, value: false)
    } catch {
      // The listener is closed.
      return
    }
    // Another handler has requested a read in a pause.
    if state == .paused { return }
    let isFirst = state == .accepting
    state = .paused
    context.eventLoop.assumeIsolated().scheduleTask(in: Self.pause) { [self] in
      guard context.channel.isActive else { return }
      state = .retrying
      try options.setOption(.autoRead, value: readsByItself)
      context.read()
    }
    if isFirst { onError(error, context.channel) }
  }
}
#endif
