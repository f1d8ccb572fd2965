import Harness
import NIOCore

/// Replies inside of the event loop's callbacks.
final class SessionHandler: ChannelInboundHandler {
  typealias InboundIn = ByteBuffer
  typealias OutboundOut = ByteBuffer

  private var session: Session
  /// Whether the handler learns of a write that fails, as a coroutine does; otherwise nobody does.
  private let seesFailures: Bool

  init(_ session: Session, seesFailures: Bool) {
    self.session = session
    self.seesFailures = seesFailures
  }

  func channelRead(context: ChannelHandlerContext, data: NIOAny) {
    guard let reply = session.reply(to: Self.unwrapInboundIn(data)) else { return }
    guard seesFailures else { return context.write(Self.wrapOutboundOut(reply), promise: nil) }
    let channel = context.channel
    context.write(Self.wrapOutboundOut(reply)).whenFailure { error in
      complain("error: a write to \(channel) failed: \(error)")
      channel.close(promise: nil)
    }
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
