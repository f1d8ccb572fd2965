import NIOCore

/// Replies inside of the event loop's callbacks.
final class SessionHandler: ChannelInboundHandler {
  typealias InboundIn = ByteBuffer
  typealias OutboundOut = ByteBuffer

  private var session: Session

  init(_ session: Session) { self.session = session }

  func channelRead(context: ChannelHandlerContext, data: NIOAny) {
    guard let reply = session.reply(to: Self.unwrapInboundIn(data)) else { return }
    context.write(Self.wrapOutboundOut(reply), promise: nil)
  }

  func channelReadComplete(context: ChannelHandlerContext) { context.flush() }

  func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }
}

/// Runs the jobs of tasks on an event loop.
final class LoopExecutor: TaskExecutor {
  private let loop: any EventLoop

  init(_ loop: any EventLoop) { self.loop = loop }

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    loop.execute { job.runSynchronously(on: self.asUnownedTaskExecutor()) }
  }
}
