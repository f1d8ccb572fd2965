#if HTTP
import Coroutine
public import CoroutineNet

/// A server of HTTP/1.1: a coroutine for each connection, which calls the handler for each request.
///
/// <!-- compiled: Tests/CoroutineHTTPTests/PageTests.swift -->
/// ```swift
/// var options = HTTPServer.Options()
/// options.tls = try TLS.Server(certificateChain: certificate, privateKey: key)
/// options.server.drain = .seconds(5)
/// try HTTPServer.run(
///   .loopback(port: 0),
///   options: options,
///   onListening: { bound.fulfill($0) },
///   notes.handle
/// )
/// ```
///
/// With ``Options/tls`` it serves over TLS. It serves HTTP/1.0 clients as well. A handler runs in the coroutine of
/// its connection, so the answers to pipelined requests have the order of the requests.
public enum HTTPServer {
  typealias Handler = @Sendable (borrowing ServerRequest, inout ServerResponse) throws -> Void

  /// The limits of a server.
  public struct Options: Sendable {
    /// The number of connections, the end of the server, the listener, the handlers' stack, and `onError`.
    public var server = Server.Options()
    /// The largest number of bytes of a head, and of trailers; beyond it the answer is 431.
    public var headSize = 16_384
    /// The largest number of bytes of a body that a handler can read; beyond it the answer is 413.
    public var bodySize = 8 << 20
    /// The largest number of bytes that the server reads and drops of a body that the handler has not read.
    ///
    /// If more are left, the connection is closed instead.
    public var discardedSize = 65_536
    /// The longest time between two requests; after it the connection is closed.
    public var idle: Duration = .seconds(60)
    /// The longest time from the first byte of a head to its last; after it the answer is 408.
    public var headTime: Duration = .seconds(10)
    /// The longest pause in a body that is read or written; after it the answer is 408, or the connection is closed.
    public var pause: Duration = .seconds(30)
    /// The certificates of a server over TLS; nil serves plain connections.
    ///
    /// With TLS a connection has a stack of ``TLS/leastStack`` or more.
    public var tls: TLS.Server?
    /// Creates the default options.
    public init() {}
  }

  /// Serves until it is cancelled or told to stop.
  ///
  /// Suspends until the server has ended. Then idle connections end at once. Requests that have arrived are answered,
  /// with `connection: close`. Handlers that have not ended after the time of `Server.Options.drain` are cancelled.
  /// In all other respects as `Server.run`.
  ///
  /// What a handler throws:
  /// - Before the first byte of the response, an ``HTTPStatusError`` is answered with its status, an error of the
  ///   client (``HTTPError``) with its own. Any other error is answered with 500, and goes to
  ///   `Server.Options.onError`.
  /// - After it, the connection is closed, so that the client sees that the response is incomplete.
  ///
  /// A handler that waits for something other than its client is cancelled when the client has closed its connection,
  /// or has ended its output: the next wait throws ``HTTPError`` with the code `PEER_HAS_GONE`. The server notices
  /// within half a second. Work that must be done nevertheless belongs into `co_shield`.
  ///
  /// The limits of time are coarse: a connection ends after the limit, and up to a quarter of the shortest limit
  /// later.
  ///
  /// - Parameters:
  ///   - address: The address to serve. With port 0 the system chooses one.
  ///   - options: The limits, and the end of the server.
  ///   - onListening: Receives the bound address, before the first connection is accepted.
  ///   - handle: Answers one request. If it returns without an answer, the answer is the response's status, with no
  ///     body.
  /// - Throws: As `Server.run`.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func run(
    _ address: SocketAddress,
    options: Options = .init(),
    onListening: ((SocketAddress) -> Void)? = nil,
    _ handle: @escaping @Sendable (borrowing ServerRequest, inout ServerResponse) throws -> Void
  ) throws {
    try run(options, handle) { options, serve in
      try Server.run(address, options: options, onListening: onListening, serve)
    }
  }

  /// Serves listeners that exist already, and closes them at its end.
  static func run(_ listeners: [Listener], _ options: Options, _ handle: @escaping Handler) throws {
    try run(options, handle) { try Server.run(listeners: listeners, options: $0, $1) }
  }

  /// Calls `accept` with what serves one connection, and looks after the connections meanwhile.
  private static func run(
    _ options: Options,
    _ handle: @escaping Handler,
    accepting accept: (Server.Options, @escaping @Sendable (Connection) throws -> Void) throws -> Void
  ) throws {
    try co_checkCancelled()
    let service = HTTPService(options, handle)
    var server = options.server
    // The handshake is made on the stack of the connection.
    if options.tls != nil { server.stack = server.stack.atLeast(TLS.leastStack) }
    var failure: (any Error)?
    do {
      try co_scope(failures: .isolated) { scope in
        // Ended by the stop, and by a cancellation, which begins the server's end as well.
        scope.launch(name: "http stop") {
          try? co_await(co_stopping)
          service.stop()
        }
        // Not of the scope: in the time after a cancellation the limits still hold.
        let sweep = co_launch(name: "http sweep") { try service.sweep() }
        do {
          try accept(server) { try HTTPConnection.serve($0, service) }
        } catch {
          failure = error
        }
        sweep.cancel()
        co_shield { try? sweep.join() }
        scope.cancel()
      }
    } catch {
      // As `Server.run`, which ends without an error when it is cancelled.
      if !co_isCancelled { throw error }
    }
    if let failure { throw failure }
  }
}
#endif
