@_spi(Hosting) public import Coroutine
import Glibc
import Synchronization

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
    /// Called with true when a connection begins to wait because the server is at its limit, so that an idle one can
    /// give way, and with false when that wait is over.
    package var onFull: (@Sendable (_ waits: Bool) -> Void)?
    /// Called when the server begins to end, before it accepts the rest of the backlog.
    package var onEnd: (@Sendable () -> Void)?
    /// Creates the default options.
    public init() {}
  }

  /// Serves until it is cancelled: calls `handle` for each connection, in its own coroutine.
  ///
  /// Suspends until the server has ended.
  /// - The coroutines of the connections run on the caller's queue, or on the shared workers if the caller does.
  /// - A connection is closed when `handle` ends. An error that `handle` throws goes to ``Options/onError``, and does
  ///   not end the server.
  /// - If no descriptor is free, the server calls ``Options/onError`` once, waits, and accepts again.
  /// - A handler that overflows its stack ends the process with a report, as any coroutine does, because the memory
  ///   beside its stack may be damaged.
  ///
  /// When the coroutine is cancelled or told to finish (`co_stopping`), or the deadline of a `co_timeout` passes,
  /// the server accepts the connections that wait already, as far as ``Options/maxConnections`` allows, because their
  /// requests may have arrived, and closes its listeners. It tells the handlers to finish: `co_isStopping` becomes true
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
    // Without a look at cancellation: who was told the address may have cancelled a server that runs.
    try serve(listeners, options, handle)
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
    try serve(listeners, options, handle)
  }

  private static func serve(
    _ listeners: [Listener],
    _ options: Options,
    _ handle: @escaping @Sendable (Connection) throws -> Void
  ) throws {
    if listeners.isEmpty { throw NetError(.badAddress("a server needs an address to serve")) }
    let service = Service(options, handle)
    try Scope.serve(draining: options.drain, until: service.waitForConnections) { handlers, outside in
      defer { for listener in listeners { listener.close() } }
      // Not a child: the server may have been cancelled.
      defer {
        options.onEnd?()
        for listener in listeners { service.acceptRest(of: listener, into: handlers) }
      }
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

// MARK: - A listener's coroutine

/// The state that the coroutines of one server share.
///
/// A connection is counted by a `ConnectionPermit`, which its coroutine's body holds and nothing else: it ends when the
/// body has returned or thrown, and also if the body never runs, because there was no stack for it or the server is
/// over.
final class Service: Sendable {
  private let options: Server.Options
  private let handle: @Sendable (Connection) throws -> Void
  /// The permits of connections that may still be accepted.
  private let permits: FairSemaphore
  /// The connections that have not ended.
  private let live = WaitGroup()

  init(_ options: Server.Options, _ handle: @escaping @Sendable (Connection) throws -> Void) {
    self.options = options
    self.handle = handle
    // A semaphore counts no further.
    permits = FairSemaphore(min(max(1, options.maxConnections), .max / 2))
  }

  /// Counts one connection of the server until it is released.
  private final class ConnectionPermit: Sendable {
    private let service: Service
    init(_ service: Service) {
      self.service = service
      service.live.add()
    }
    deinit {
      service.permits.release()
      service.live.done()
    }
  }

  /// Accepts until it is cancelled, and launches a handler for each connection.
  ///
  /// Throws the error of the listener, or the cancellation error.
  func accept(_ listener: Listener, into handlers: Scope) throws {
    var pause = Pause()
    while true {
      do {
        if !permits.tryAcquire() {
          if options.onFull != nil { try listener.waitForConnection() }
          options.onFull?(true)
          defer { options.onFull?(false) }
          try permits.acquire()
        }
        if try acceptOne(listener, handlers) {
          pause = Pause()
        } else {
          // No permit is held during this wait, because other listeners may have a connection.
          try listener.waitUntilAcceptable()
        }
      } catch let error as NetError where Self.isShortage(error.code) || Listener.isTransient(error.code) {
        // The connection stays in the listener's queue, unless the memory for its record is what is short: then it is
        // closed. A descriptor may become free at any time. If the system still refuses, the server tries again after
        // the pause.
        if pause.isFirst { options.onError?(error, listener.address) }
        try co_delay(pause.next())
      }
    }
  }

  /// Accepts the connections that wait, at the server's end; a close of the listener would reset them.
  ///
  /// Never suspends. As many as the limit allows, and no more than arrive in one backlog: clients that go on connecting
  /// must not keep the server from ending.
  func acceptRest(of listener: Listener, into handlers: Scope) {
    for _ in 0..<4_096 where permits.tryAcquire() {
      guard (try? acceptOne(listener, handlers)) == true else { return }
    }
  }

  /// Accepts a connection if the backlog has one; returns whether it had.
  ///
  /// The caller has acquired a permit, which the connection or this function releases.
  private func acceptOne(_ listener: Listener, _ handlers: Scope) throws -> Bool {
    let permit = ConnectionPermit(self)
    guard let connection = try listener.acceptNow() else { return false }
    launch(connection, of: listener, permit, handlers)
    return true
  }

  private func launch(
    _ connection: Connection,
    of listener: Listener,
    _ permit: ConnectionPermit,
    _ handlers: Scope
  ) {
    let age = options.shedding == nil ? nil : ConnectionAge(of: connection)
    handlers.launch(name: "connection", stack: options.stack) { [self] in
      defer {
        connection.close()
        listener.refillReserve()
        withExtendedLifetime(permit) {}
      }
      connection.remoteAddress.name(RunningCoroutine.title)
      do {
        if let shedding = options.shedding, let age, !shedding.admit(after: age.now) {
          return try shedding.refuse(connection)
        }
        try handle(connection)
      } catch {
        // The server's own cancellation is no error of the connection.
        if error is CancellationError, co_isCancelled { return }
        guard let onError = options.onError else { throw error }
        onError(error, connection.remoteAddress)
      }
    }
  }

  /// Suspends until no connection is left.
  func waitForConnections() throws { try live.wait() }

  /// Whether an error means a shortage that may end by itself: of descriptors, memory or buffers.
  private static func isShortage(_ code: Int32) -> Bool {
    [EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC, EAGAIN].contains(code)
  }

  /// The pauses between attempts during a shortage: 5 ms at first, then doubled, 500 ms at most.
  private struct Pause {
    private var length: Duration = .zero
    var isFirst: Bool { length == .zero }
    mutating func next() -> Duration {
      length = isFirst ? .milliseconds(5) : min(length * 2, .milliseconds(500))
      return length
    }
  }
}

// MARK: - Load shedding

// The rule for work that has waited for too long: the age of the queue, as CoDel measures it (RFC 8289), with the
// decision of servers, as Facebook's Folly makes it.
//
//                      the least age of an interval is above the target
//   NORMAL: all are admitted  ------------------------------------------->  OVERLOADED: what is older than twice the
//                             <-------------------------------------------  target is refused
//                      ... is not, or the queue was empty
//
// A queue that is long for a moment has some work in each interval that has waited for a short time: a burst. A queue
// in which all work of an interval was late is a standing one: it adds delay, and no throughput. CoDel itself then
// drops one packet, and the next one sooner and sooner, because the sender of a packet slows down when it is lost.
// Clients of a server do not, so here everything is refused that is too old to be worth the work.
//
// Invariants
//  1. One caller ends an interval: the one whose compare-and-swap moves `end`. It alone exchanges `least`, and decides.
//  2. `least` is at most the age of each work that was offered in the interval, but for those that run beside the
//     exchange: they count to the old interval or to the new one.
//  3. Each call of `admit` adds to one of the two counters.

/// A rule that refuses work while a server is overloaded: when it has waited for too long to be worth doing.
///
/// <!-- compiled: Tests/CoroutineNetTests/SocketSnippets.swift -->
/// ```swift
/// let shedding = LoadShedding(target: .milliseconds(20)) { connection in
///   try connection.write("busy, try later\n".utf8)
///   try connection.closeLingering()
/// }
/// var options = Server.Options()
/// options.maxConnections = 200
/// options.shedding = shedding
/// ```
///
/// A server whose queue grows serves every request late, in the end after its client has given up. This rule keeps the
/// age of the queue near a target: it refuses what is too old, so that the rest is served in time. One object serves
/// one queue. Put it into ``Server/Options/shedding`` for connections; for other work call ``admit(after:)``.
public final class LoadShedding: Sendable {
  /// The age that a queue may have all the time.
  public let target: Duration
  /// The time in which the queue has to reach the target once, or it counts as overloaded.
  public let interval: Duration
  private let refusal: (@Sendable (Connection) throws -> Void)?
  private let end = Atomic<UInt64>(0)
  private let least = Atomic<Int64>(0)
  private let overload = Atomic<Bool>(false)
  private let admissions = Atomic<Int>(0)
  private let refusals = Atomic<Int>(0)

  /// Creates a rule, and its counters.
  ///
  /// - Parameters:
  ///   - target: The age that the queue may have all the time. While it is overloaded, what is older than twice that is
  ///     refused.
  ///   - interval: The time in which some work has to be younger than the target. A burst that ends within it refuses
  ///     nothing.
  ///   - refuse: Answers a connection that a server refuses; it is closed afterwards. If nil, the connection is closed
  ///     at once.
  public init(
    target: Duration = .milliseconds(5),
    interval: Duration = .milliseconds(100),
    refuse: (@Sendable (Connection) throws -> Void)? = nil
  ) {
    self.target = target
    self.interval = interval
    refusal = refuse
  }

  /// Decides about one piece of work, when it is about to begin.
  ///
  /// Never suspends; any thread; constant time. Called once for each piece of work, whatever the decision.
  ///
  /// - Parameter waited: The time for which the work has waited.
  /// - Returns: Whether to do the work. If false, refuse it, and do as little as possible for it.
  public func admit(after waited: Duration) -> Bool {
    let age = max(0, waited.nanoseconds)
    let now = CallerClock.now
    let old = end.load(ordering: .relaxed)
    let next = now + UInt64(max(0, interval.nanoseconds))
    if now >= old, end.compareExchange(expected: old, desired: next, ordering: .relaxed).exchanged {
      // The oldest work of the queue: if it has come after the interval, the queue was empty in between, whatever was
      // late in the interval.
      let isStanding = Int64(clamping: now) - age <= Int64(clamping: old)
      let leastOfInterval = least.exchange(age, ordering: .relaxed)
      overload.store(isStanding && leastOfInterval > target.nanoseconds, ordering: .relaxed)
    } else {
      least.min(age, ordering: .relaxed)
    }
    let isAdmitted = !isOverloaded || age / 2 <= target.nanoseconds
    if isAdmitted {
      admissions.wrappingAdd(1, ordering: .relaxed)
    } else {
      refusals.wrappingAdd(1, ordering: .relaxed)
    }
    return isAdmitted
  }

  /// Whether all work of the last interval has waited for more than the target.
  public var isOverloaded: Bool { overload.load(ordering: .relaxed) }
  /// The number of pieces of work that were admitted.
  public var admitted: Int { admissions.load(ordering: .relaxed) }
  /// The number of pieces of work that were refused.
  public var refused: Int { refusals.load(ordering: .relaxed) }

  /// Answers a connection that was refused.
  func refuse(_ connection: Connection) throws { try refusal?(connection) }
}
