import Coroutine
import CoroutineNIO
public import Hummingbird
public import NIOCore

/// A context that knows the event loop of its request's connection.
public protocol EventLoopRequestContext: RequestContext {
  /// The event loop of the connection.
  var eventLoop: any EventLoop { get }
}

/// A context with the event loop of the request's connection, and nothing else.
public struct BasicEventLoopRequestContext: EventLoopRequestContext {
  /// What Hummingbird itself needs.
  public var coreContext: CoreRequestContextStorage
  /// The event loop of the connection.
  public let eventLoop: any EventLoop

  /// Creates the context of a request.
  public init(source: Source) {
    coreContext = .init(source: source)
    eventLoop = source.channel.eventLoop
  }
}

/// Runs a part of a request in a coroutine, while the request's Task waits for it.
enum RouteCoroutine {
  /// Returns the event loop on which the coroutine of a request runs; nil for the worker pool.
  typealias Loop<Context> = @Sendable (Context) -> (any EventLoop)?

  static func run<Output: Sendable>(
    _ name: String,
    on loop: (any EventLoop)?,
    _ body: sending @escaping () throws -> Output
  ) async throws -> Output {
    let job =
      if let loop {
        co_launch(on: loop, name: name, start: .immediate, body)
      } else {
        co_launch(name: name, start: .immediate, body)
      }
    // Nothing else waits for the job. So if the Task is cancelled, the job is cancelled, and this waits for its end.
    return try await job.value
  }
}
