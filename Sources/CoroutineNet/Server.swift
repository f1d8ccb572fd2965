@_spi(Hosting) public import Coroutine

/// A structured server: it accepts connections, and runs a coroutine for each of them.
///
/// <!-- compiled: Tests/CoroutineNetTests/ArticleSnippets.swift -->
/// ```swift
/// try Server.run(.loopback(port: 0), onListening: { address in bound.fulfill(address) }) { connection in
///   var reader = BufferedReader(connection)
///   while let line = try co_timeout(.seconds(30), { try reader.readLine(max: 1_000) }) {
///     try connection.write("you said \(line)\n".utf8)
///   }
/// }
/// ```
public enum Server {
  /// The options of a server: how it accepts, and how it ends.
  public struct Options: Sendable {
    /// The largest number of connections at once; at the limit the server accepts no more until one ends.
    ///
    /// Zero and negative numbers count as 1. `.max` means no limit.
    public var maxConnections = 100_000
    /// The time in which handlers may finish after the server was cancelled or stopped.
    ///
    /// A cancellation after a stop ends it at once.
    public var drain: Duration = .seconds(10)
    /// The size of the stack of each handler.
    ///
    /// Small stacks save memory for idle connections, because many of them share a page table. A connection whose
    /// handler gets no stack is closed, and `CoroutineRuntime.unhandledErrorHandler` receives the error.
    public var stack: StackSize = .standard
    /// The options of binding the listener.
    ///
    /// With `reusePort`, a server on the shared workers has a listener for each worker.
    public var listener = Listener.Options()
    /// Refuses connections that have waited for too long while the server is overloaded; nil refuses none.
    public var shedding: LoadShedding?
    /// Receives each error of a handler with the peer's address, and a shortage while accepting with the server's.
    ///
    /// Called in coroutines of the server, possibly on several threads at once. An error does not end the server. If
    /// the closure is nil, `CoroutineRuntime.unhandledErrorHandler` receives the error of a handler.
    public var onError: (@Sendable (any Error, SocketAddress) -> Void)?
    /// Creates the default options.
    public init() {}
  }

  /// Serves until it is cancelled: calls `handle` for each connection, in a coroutine of its own.
  ///
  /// Suspends until the server has ended.
  /// - The coroutines of the connections run on the caller's queue, or on the shared workers if the caller does.
  /// - A connection is closed when `handle` ends. An error that `handle` throws goes to ``Options/onError``, and does
  ///   not end the server.
  /// - If no descriptor is free, the server calls ``Options/onError`` once, waits, and accepts again.
  /// - A handler that overflows its stack ends the process with a report, as any coroutine does, because the memory
  ///   beside its stack may be damaged.
  ///
  /// When the coroutine is cancelled or told to finish (`co_stopping`), or the deadline of a `co_timeout(_:_:)` passes,
  /// the server stops accepting and closes its listeners. It tells the handlers to finish: `co_isStopping` becomes true
  /// in their coroutines, and `co_stopping` is settled. They may continue for ``Options/drain``. Those that have not
  /// ended by then are cancelled. The function returns, without an error, when the last handler has ended. A handler
  /// that waits in ``BufferedReader/waitForMessage()`` for the next message of an idle peer ends at once.
  ///
  /// A cancellation that comes after a stop cancels the handlers at once: the second signal in a program of `co_main`,
  /// or the end of the time of `Scope.stop(within:)`.
  ///
  /// - Parameters:
  ///   - address: The address to serve. With port 0 the system chooses one.
  ///   - options: The limits, and the end of the server.
  ///   - onListening: Receives the bound address, before the first connection is accepted.
  ///   - handle: Serves one connection.
  /// - Throws: ``NetError`` if the address cannot be bound, or if the listener fails; in the second case after the
  ///   handlers have ended as described. The cancellation error, without serving, if the coroutine is cancelled before.
  ///   `CoroutineError.notInCoroutine` outside a coroutine.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func run(
    _ address: SocketAddress,
    options: Options = .init(),
    onListening: ((SocketAddress) -> Void)? = nil,
    _ handle: @escaping @Sendable (Connection) throws -> Void
  ) throws {
    let tell = onListening.map { tell in { (bound: [SocketAddress]) in tell(bound[0]) } }
    try run([address], options: options, onListening: tell, handle)
  }

  /// Serves several addresses, as ``run(_:options:onListening:_:)-(SocketAddress,_,_,_)`` serves one.
  ///
  /// ``Options/maxConnections`` counts the connections of all addresses together. If one listener fails, the server
  /// ends.
  ///
  /// - Parameters:
  ///   - addresses: The addresses to serve, at least one. For each port 0 the system chooses one.
  ///   - options: The limits, and the end of the server.
  ///   - onListening: Receives the bound addresses, in the same order, before the first connection is accepted.
  ///   - handle: Serves one connection.
  /// - Throws: The errors of a server with one address; none of the addresses is served if one cannot be bound.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func run(
    _ addresses: [SocketAddress],
    options: Options = .init(),
    onListening: (([SocketAddress]) -> Void)? = nil,
    _ handle: @escaping @Sendable (Connection) throws -> Void
  ) throws {
    try co_checkCancelled()
    var listeners: [Listener] = []
    defer { for listener in listeners { listener.close() } }
    var bound: [SocketAddress] = []
    for address in addresses {
      let all = try bind(address, options)
      bound.append(all[0].address)
      listeners += all
    }
    onListening?(bound)
    try run(listeners: listeners, options: options, handle)
  }

  /// Serves listeners that exist already, as those of ``Listener/inherited()``, and closes them at its end.
  ///
  /// In all other respects it behaves as with several addresses. ``Options/listener`` has no effect.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func run(
    listeners: [Listener],
    options: Options = .init(),
    _ handle: @escaping @Sendable (Connection) throws -> Void
  ) throws {
    defer { for listener in listeners { listener.close() } }
    try co_checkCancelled()
    if listeners.isEmpty { throw NetError(.badAddress("a server needs an address to serve")) }
    let service = Service(options, handle)
    try Scope.serve(draining: options.drain, until: service.waitForConnections) { handlers, outside in
      defer { for listener in listeners { listener.close() } }
      try outside.launch(name: "accepting") { try accept(listeners, into: handlers, of: service) }.join()
    }
  }

  /// Accepts until the server is stopped or cancelled, or until a listener fails.
  ///
  /// Each of these cancels all acceptors, also those that wait for the end of a connection because the server is at its
  /// limit. It returns when they have ended.
  private static func accept(_ listeners: [Listener], into handlers: Scope, of service: Service) throws {
    try co_scope { scope in
      let workers = listeners.count > 1 ? CoroutineWorker.ofCaller : []
      for (index, listener) in listeners.enumerated() {
        let accept = { @Sendable in try service.accept(listener, into: handlers) }
        if workers.isEmpty {
          scope.launch(name: "accept", accept)
        } else {
          scope.launch(on: workers[index % workers.count], name: "accept", accept)
        }
      }
      try co_await(co_stopping)
      scope.cancel()
    }
  }

  private static func bind(_ address: SocketAddress, _ options: Options) throws -> [Listener] {
    let first = try Listener.bind(address, options: options.listener)
    guard options.listener.reusePort, first.address.port != nil else { return [first] }
    let others = try (1..<max(1, CoroutineWorker.ofCaller.count)).map { _ in
      try Listener.bind(first.address, options: options.listener)
    }
    return [first] + others
  }
}
