import Coroutine

/// A structured server: it accepts connections, and runs a coroutine for each.
public enum Server {
  /// How a server accepts, and how it ends.
  public struct Options: Sendable {
    /// The largest number of connections at once; at the limit the server accepts no more until one ends.
    public var maxConnections = 100_000
    /// How long connections may finish after the server was cancelled.
    public var drain: Duration = .seconds(10)
    /// How the listener is bound.
    ///
    /// With `reusePort`, a server on the shared scheduler has a listener for each worker.
    public var listener = Listener.Options()
    /// Receives the error of one connection with its peer's address, and an error of accepting with the server's.
    ///
    /// Called on the server's coroutines; it never ends the server. If it is nil, a handler's error is an unhandled
    /// error, which `CoroutineRuntime.onUnhandledError` receives.
    public var onError: (@Sendable (any Error, SocketAddress) -> Void)?
    /// Creates the default options.
    public init() {}
  }

  /// Serves until it is cancelled: calls `handle` for each connection, in a coroutine of its own.
  ///
  /// Suspends. The coroutines of the connections run where the caller runs: on its queue, or on the workers of the
  /// shared scheduler. A connection is closed when `handle` ends. An error that `handle` throws goes to
  /// ``Options/onError``, and never ends the server. If the process has no descriptor left, the server waits, tells
  /// ``Options/onError`` once, and accepts again. A handler that overflows its stack ends the process with a report, as
  /// any coroutine does: what lies beside its stack cannot be trusted any more.
  ///
  /// When the coroutine is cancelled or told to finish (`co_stopping`), or the deadline of a `co_timeout(_:_:)` passes,
  /// the server stops accepting and closes its listeners. Handlers go on for ``Options/drain``; those that have not ended then are
  /// cancelled. It returns, without an error, when the last of them has ended.
  ///
  /// - Parameters:
  ///   - address: The address to serve. With port 0 the system chooses one.
  ///   - options: Limits, and how it ends.
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
    try co_checkCancelled()
    let listeners = try bind(address, options)
    defer { for listener in listeners { listener.close() } }
    onListening?(listeners[0].address)
    let service = Service(options, handle)
    var failures: [any Error] = []
    do {
      try co_scope { accepting in
        // Children of a scope inside the shield are not cancelled with this coroutine; those of the scope outside are,
        // also while this coroutine waits in the shield.
        try co_shield {
          try co_supervise { handlers in
            let acceptors = listeners.enumerated().map { index, listener in
              accepting.launch(name: "accept", onWorker: listeners.count > 1 ? index : nil) { () -> (any Error)? in
                // Without one of its listeners, a server has ended.
                defer { for listener in listeners { listener.close() } }
                return service.accept(listener, into: handlers)
              }
            }
            let stop = accepting.launch(name: "stop") {
              try co_await(co_stopping)
              for listener in listeners { listener.close() }
            }
            for acceptor in acceptors {
              // An acceptor that was cancelled before it began throws.
              if let failure = (try? acceptor.join()) ?? nil { failures.append(failure) }
            }
            stop.cancel()
            service.drain(handlers)
          }
        }
      }
    } catch {
      if !co_isCancelled { throw error }
    }
    // An acceptor that a cancellation ends closes all listeners, which may reach another one before the cancellation. A
    // stop closes them as well.
    if co_isCancelled || co_isStopping, failures.allSatisfy({ $0 as? NetError == .closed }) { return }
    // One listener's failure closes the others.
    if let failure = failures.first(where: { $0 as? NetError != .closed }) ?? failures.first { throw failure }
  }

  private static func bind(_ address: SocketAddress, _ options: Options) throws -> [Listener] {
    let first = try Listener.bind(address, options: options.listener)
    guard options.listener.reusePort, first.address.port != nil else { return [first] }
    let others = try (1..<max(1, CoroutineWorkers.ofCaller)).map { _ in
      try Listener.bind(first.address, options: options.listener)
    }
    return [first] + others
  }
}
