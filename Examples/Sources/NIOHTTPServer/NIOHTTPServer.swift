import Coroutine
import CoroutineNIO
public import NIOCore
import NIOHTTP1
import NIOPosix

/// An HTTP/1.1 server in straight-line code, on SwiftNIO's event loops and its codec.
///
/// ```swift
/// try NIOHTTPServer.run(.init(ipAddress: "127.0.0.1", port: 8080), on: group) { request, response in
///   let name = try request.collect(upTo: 100)
///   try response.send("Hello, \(String(buffer: name))!")
/// }
/// ```
public enum NIOHTTPServer {
  /// Serves one request.
  ///
  /// It runs in the coroutine of the connection, on the connection's event loop, so it must not block.
  public typealias Handler = @Sendable (HTTPRequest, HTTPResponse) throws -> Void

  /// Serves until it is cancelled: calls `handle` for each request, in the coroutine of its connection.
  ///
  /// Called in a coroutine of any thread, which it suspends until the server has ended.
  /// - The requests of a connection are answered one after another, in their order. While a response is unfinished, at
  ///   most one read of further requests is in memory.
  /// - A response that the handler has not ended is ended when the handler returns. An unread body is discarded if it
  ///   is short; otherwise the connection is closed after the response.
  /// - Before the server closes a connection, it ends its output, and drops what the client sends for at most two
  ///   seconds. So the client receives the last response, also if it has sent further requests, which get no answer.
  /// - If the handler throws before it has begun the response, the client gets the status of the error: that of
  ///   ``HTTPStatusError`` or ``HTTPServerError``, and 500 for all others. If it throws later, the connection is closed
  ///   at once, so that the client sees that the response is incomplete.
  /// - While there are ``HTTPLimits/connections``, the server accepts no more. Further connections wait in the system's
  ///   queue of the listener, and are served when others have ended.
  /// - If no descriptor is free, the server calls `onError` once, and tries to accept once a second.
  ///
  /// When the coroutine is cancelled or told to finish (`co_stopping`), the server stops accepting. Idle connections
  /// are closed, requests that have arrived are served, and their responses say `connection: close`. Requests that last
  /// longer than `drain` are cancelled. The function returns, without an error, when the last connection has ended.
  ///
  /// - Parameters:
  ///   - address: The address to serve. With port 0 the system chooses one.
  ///   - group: The event loops.
  ///   - limits: What clients may send, and how long the server waits for them.
  ///   - drain: The time in which requests may finish after the server was cancelled or stopped.
  ///   - onListening: Receives the listening channel, which has the bound address.
  ///   - onError: Receives an error of `configure`, and each error of a handler that has no status of its own, on the
  ///     connection's event loop; and the error of accepting while descriptors are short, with the listening channel.
  ///     If it is nil, `CoroutineRuntime.unhandledErrorHandler` receives an error that has broken off a response, and
  ///     the others are dropped.
  ///   - configure: Adds handlers in front of the codec, TLS for example, to an accepted channel.
  ///   - handle: Serves one request.
  /// - Throws: The error of binding; the cancellation error, without serving, if the coroutine is cancelled before;
  ///   `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "start a Task, or await the `value` of a coroutine that does this")
  public static func run(
    _ address: NIOCore.SocketAddress,
    on group: any EventLoopGroup,
    limits: HTTPLimits = .init(),
    drain: Duration = .seconds(10),
    onListening: ((any NIOCore.Channel) -> Void)? = nil,
    onError: (@Sendable (any Error, any NIOCore.Channel) -> Void)? = nil,
    configure: @escaping @Sendable (any NIOCore.Channel) throws -> Void = { _ in },
    _ handle: @escaping Handler
  ) throws {
    let prepare: @Sendable (any NIOCore.Channel) throws -> Void = { channel in
      try configure(channel)
      try addCodec(to: channel, limits)
    }
    try ServerBootstrap(group: group)
      .serverChannelOption(.backlog, value: 1024)
      .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
      // For ConnectionLimitHandler.
      .serverChannelOption(.maxMessagesPerRead, value: 1)
      .serverChannelInitializer { listener in
        listener.eventLoop.makeCompletedFuture {
          try listener.pipeline.syncOperations.addHandler(ConnectionLimitHandler(limits.connections))
        }
      }
      // A client that has sent its last request may close its output, and still reads the response.
      .childChannelOption(.allowRemoteHalfClosure, value: true)
      .serve(
        to: address,
        drain: drain,
        onListening: onListening,
        onError: onError,
        configure: prepare
      ) { (channel: HTTPChannel) in
        try HTTPConnection(channel, limits, onError, handle).serve()
        // What the end of the connection has left unsent.
        try? co_timeout(limits.pause) { try channel.close() }
      }
  }

  private static func addCodec(to channel: any NIOCore.Channel, _ limits: HTTPLimits) throws {
    // HTTPResponse frames the body; the codec would frame the response to a HEAD request as if it had one.
    var encoder = HTTPResponseEncoder.Configuration()
    encoder.automaticallySetFramingHeaders = false
    var decoder = NIOHTTPDecoderLimitConfiguration()
    decoder.maxHeaderListSize = limits.headSize
    decoder.maxHeaderFieldSize = limits.headSize
    let pipeline = channel.pipeline.syncOperations
    try pipeline.addHandler(DiscardingHandler())
    // Straight-line code answers in order without assistance, and answers errors itself.
    try pipeline.configureHTTPServerPipeline(
      withPipeliningAssistance: false,
      withErrorHandling: false,
      withOutboundHeaderValidation: true,
      withEncoderConfiguration: encoder,
      withDecoderLimitConfiguration: decoder
    )
    try pipeline.addHandler(QuiescingHandler())
  }
}

/// The limits of what clients may send, and of the time that the server waits for them.
public struct HTTPLimits: Sendable {
  /// The largest number of connections at once, idle ones included; further ones wait until one has ended.
  public var connections = 100_000
  /// The largest request head in bytes; 431 beyond it.
  public var headSize = 16 << 10
  /// The largest request body in bytes; 413 beyond it.
  public var bodySize = 16 << 20
  /// The part of an unread body in bytes that is discarded to keep the connection.
  public var discardedSize = 256 << 10
  /// The longest wait for the next request's head, after which an idle connection is closed.
  public var idle: Duration = .seconds(75)
  /// The longest wait for the next bytes of a body, after which the client gets 408, and for the client to take bytes
  /// of the response, after which the connection is closed.
  public var pause: Duration = .seconds(60)
  /// Creates the default limits.
  public init() {}
}
