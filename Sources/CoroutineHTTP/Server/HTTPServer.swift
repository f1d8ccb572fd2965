#if HTTP
public import Coroutine
public import CoroutineNet
import Synchronization

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
/// its connection, on a stack of its own, so the answers to pipelined requests have the order of the requests.
public enum HTTPServer {
  typealias Handler = @Sendable (borrowing ServerRequest, inout ServerResponse) throws -> Void

  /// The limits of a server; a negative number counts as 0.
  public struct Options: Sendable {
    /// The number of connections, the end of the server, the listener, the connections' stack, and `onError`.
    ///
    /// A connection waits on a stack of 64 KiB: small, because a handler has a stack of its own (``handlerStack``).
    public var server: Server.Options
    /// The size of the stack on which a handler runs, for the time of its request (`co_withStack`).
    ///
    /// 4 MiB decode JSON of the 511 levels that Foundation allows. A stack takes memory as deep as it is used. Above 16
    /// MiB, or if no stack can be had, the answer is 500, and the error goes to `Server.Options.onError`.
    public var handlerStack: StackSize = .bytes(4 << 20)
    /// The largest number of bytes of a head, and of trailers; beyond it the answer is 431.
    public var headSize = 16_384
    /// The largest number of bytes of a body that a handler can read; beyond it the answer is 413.
    public var bodySize = 8 << 20
    /// The largest number of bytes that the server reads and drops of a body that the handler has not read.
    ///
    /// If more are left, the connection is closed instead. Of a body whose length is known, the bytes count that are
    /// left when the answer begins, also if the handler reads them later.
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
    /// Counts what clients have done wrong.
    ///
    /// Copies share it; give it to one server.
    public var counters = Counters()
    /// Creates the default options.
    public init() {
      server = Server.Options()
      server.stack = .bytes(64 << 10)
    }

    /// The options with numbers that can be added and multiplied; offsets in a head have 32 bits.
    fileprivate var clamped: Options {
      var options = self
      options.headSize = min(max(0, headSize), 1 << 30)
      options.bodySize = max(0, bodySize)
      options.discardedSize = min(max(0, discardedSize), 1 << 60)
      return options
    }

    /// `onError` on the stack of a handler.
    ///
    /// It is code of the program as well, and those that call it have less.
    fileprivate var onErrorWithRoom: (@Sendable (any Error, SocketAddress) -> Void)? {
      guard let onError = server.onError else { return nil }
      let stack = handlerStack
      return { error, address in
        // If there is no such stack, on that of the caller.
        do { try co_withStack(stack) { onError(error, address) } } catch _ { onError(error, address) }
      }
    }
  }

  /// What clients have done wrong since the server began; each went to `Server.Options.onError` as well.
  ///
  /// Any thread; never suspends.
  public final class Counters: Sendable {
    private let handshakes = Atomic<Int>(0)
    private let requests = Atomic<Int>(0)
    init() {}

    /// The number of handshakes of TLS that have failed after the client had sent a byte.
    public var failedHandshakes: Int { handshakes.load(ordering: .relaxed) }
    /// The number of requests that the server itself has refused, as with 400, 408, 413, 431 or 501.
    public var refusedRequests: Int { requests.load(ordering: .relaxed) }

    func addFailedHandshake() { handshakes.wrappingAdd(1, ordering: .relaxed) }
    func addRefusedRequest() { requests.wrappingAdd(1, ordering: .relaxed) }
  }

  /// Serves until it is cancelled or told to stop.
  ///
  /// Suspends until the server has ended. Then idle connections end at once, and those whose client has sent nothing of
  /// its handshake. Requests that have arrived are answered, with `connection: close`, also those of connections that
  /// wait to be accepted; of several that a client has sent at once, the first. Handlers that have not ended after the
  /// time of `Server.Options.drain` are cancelled.
  /// In all other respects as `Server.run`.
  ///
  /// What a handler throws:
  /// - Before the first byte of the response, an ``HTTPStatusError`` is answered with its status, an error of the
  ///   client (``HTTPError``) with its own. Any other error is answered with 500, and goes to
  ///   `Server.Options.onError`, or as a failed coroutine to `CoroutineRuntime.unhandledErrorHandler`.
  /// - After it, the connection is closed, so that the client sees that the response is incomplete.
  ///
  /// `Server.Options.onError` receives as well what no handler sees: an ``HTTPError`` for each request that the server
  /// has refused, a ``TLSError`` for each handshake that has failed. ``Options/counters`` counts them.
  ///
  /// At the limit of `Server.Options.maxConnections`, the connection that has waited longest for a request gives way to
  /// one that waits to be accepted.
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

  /// Serves listeners that exist already, as those of `Listener.inherited()`, and closes them at its end.
  ///
  /// In all other respects as with an address.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func run(
    listeners: [Listener],
    options: Options = .init(),
    _ handle: @escaping @Sendable (borrowing ServerRequest, inout ServerResponse) throws -> Void
  ) throws {
    try run(options, handle) { try Server.run(listeners: listeners, options: $0, $1) }
  }

  /// Calls `accept` with what serves one connection, and looks after the connections meanwhile.
  private static func run(
    _ options: Options,
    _ handle: @escaping Handler,
    accepting accept: (Server.Options, @escaping @Sendable (Connection) throws -> Void) throws -> Void
  ) throws {
    try co_checkCancelled()
    var options = options
    options.server.onError = options.onErrorWithRoom
    let service = HTTPService(options, handle)
    var server = options.server
    // The handshake is made on the stack of the connection.
    if options.tls != nil { server.stack = server.stack.atLeast(TLS.leastStack) }
    server.onFull = { service.needRoom($0) }
    server.onEnd = { service.stop() }
    // Not a child: in the time after a cancellation the limits still hold.
    let sweep = co_launch(name: "http sweep") { try service.sweep() }
    defer {
      sweep.cancel()
      co_shield { try? sweep.join() }
    }
    try accept(server) { try HTTPConnection.serve($0, service) }
  }
}

// MARK: - Connections

// The connections of one server, and the coroutine that looks after them.
//
// No request sets a timer. Each connection has a word that says what it does and changes with each step.
// The sweep reads the words several times in each limit, and ends the connections whose word has
// stayed the same for a whole limit. Only while there are connections.
//
// Invariants
//  1. An entry is in the table from the moment at which its scope exists until the scope's body is over.
//  2. A connection is ended by an exchange of its word, and then by the cancellation of its scope. The exchange has
//     one winner: the sweep, the stop, or the connection's next step.
//  3. Connections are ended in the order in which they came, not in that of their addresses: a world repeats a run.
//  4. `isStopping` is stored before the words are read, and a connection reads it after it has stored that it is
//     idle. So of a stop and a connection that gets idle, at least one sees the other.

final class HTTPService: Sendable {
  let options: HTTPServer.Options
  let handle: HTTPServer.Handler
  private let stopping = Atomic<Bool>(false)
  private struct Table: Sendable {
    var entries: [ObjectIdentifier: Entry] = [:]
    var last = 0
  }

  private let table = ThreadMutex(Table())
  /// Released by the first connection after none; the sweep waits for it.
  private let isNeeded = FairSemaphore(0, limit: .unbounded)
  /// The number of sweeps.
  private let ticks = Atomic<Int>(0)
  /// The number of acceptors that wait for a place, each with a connection.
  private let waiting = Atomic<Int>(0)
  /// The sweep in which a connection was last made to give way.
  private let lastGiven = Atomic<Int>(-2)

  struct Entry {
    /// The order of coming.
    let number: Int
    let connection: HTTPConnection
    let scope: Scope
  }

  init(_ options: HTTPServer.Options, _ handle: @escaping HTTPServer.Handler) {
    self.options = options.clamped
    self.handle = handle
  }

  var isStopping: Bool { stopping.load(ordering: .sequentiallyConsistent) }

  func add(_ connection: HTTPConnection, _ scope: Scope) {
    let isFirst = table.withLock {
      $0.last += 1
      $0.entries[ObjectIdentifier(connection)] = Entry(number: $0.last, connection: connection, scope: scope)
      return $0.entries.count == 1
    }
    if isFirst { isNeeded.release() }
  }

  func remove(_ connection: HTTPConnection) {
    _ = table.withLock { $0.entries.removeValue(forKey: ObjectIdentifier(connection)) }
  }

  /// In any order: only those that a caller picks are worth sorting.
  private var entries: [Entry] { table.withLock { Array($0.entries.values) } }

  private static func inOrder(_ entries: [Entry]) -> [Entry] { entries.sorted { $0.number < $1.number } }

  // MARK: The end

  /// Ends the idle connections; the others end with their current request.
  func stop() {
    stopping.store(true, ordering: .sequentiallyConsistent)
    let idle = entries.filter { $0.connection.phase.end(ifIdleBecause: .stopped) }
    for entry in Self.inOrder(idle) { entry.scope.cancel() }
  }

  // MARK: Room

  var tick: Int { ticks.load(ordering: .relaxed) }

  /// An acceptor begins or ends its wait for a place.
  func needRoom(_ waits: Bool) {
    waiting.wrappingAdd(waits ? 1 : -1, ordering: .relaxed)
    if waits { makeRoom() }
  }

  /// Ends the connection that has been idle longest, if more acceptors wait than connections are giving way.
  ///
  /// Called with each sweep too, because a request may come as its connection is to give way: then it is answered, and
  /// the connection goes on. One that waits since the last sweep is spared: its request may be on its way. Linear in
  /// the connections.
  private func makeRoom() {
    let waiting = waiting.load(ordering: .relaxed)
    if waiting == 0 { return }
    let (entries, now) = (entries, tick)
    if entries.count(where: { $0.connection.phase.reason == .gaveWay }) >= waiting { return }
    // Between the end of a connection and that of the wait for its place, none seems to leave.
    if waiting == 1, now - lastGiven.load(ordering: .relaxed) < 2 { return }
    let resting = entries.filter {
      $0.connection.phase.isIdle && $0.connection.restingSince.load(ordering: .relaxed) < now
    }
    let oldest = resting.min {
      $0.connection.restingSince.load(ordering: .relaxed) < $1.connection.restingSince.load(ordering: .relaxed)
    }
    guard let oldest, oldest.connection.phase.end(ifIdleBecause: .gaveWay) else { return }
    lastGiven.store(now, ordering: .relaxed)
    oldest.scope.cancel()
  }

  // MARK: The sweep

  /// Looks after the connections until it is cancelled.
  func sweep() throws {
    let limits = [options.idle, options.headTime, options.pause]
    let interval = max(.milliseconds(5), min(.milliseconds(250), (limits.min() ?? .seconds(1)) / 4))
    func sweeps(_ limit: Duration) -> Int { Int(max(0, min(limit / interval, 1e9)).rounded(.up)) + 1 }
    let most = Limits(idle: sweeps(options.idle), head: sweeps(options.headTime), pause: sweeps(options.pause))
    while true {
      try isNeeded.acquire()
      while true {
        try co_delay(interval)
        let entries = entries
        if entries.isEmpty { break }
        ticks.wrappingAdd(1, ordering: .relaxed)
        makeRoom()
        for entry in Self.inOrder(entries.filter { $0.connection.hasExpired(most) }) {
          entry.scope.cancel(entry.connection.phase.reason?.error)
        }
      }
    }
  }

  /// The numbers of sweeps in which a connection may stay as it is.
  struct Limits {
    let idle: Int
    let head: Int
    let pause: Int
  }
}

// MARK: - Phases

// What a connection does, in one word.
//
//   HANDSHAKE --first byte--+
//                           v
//   IDLE --first byte--> HEAD --complete--> BUSY <--> READING, WRITING      UPGRADED: for ever
//     |                    |                  |            |
//     +--------------------+------------------+------------+---- the sweep or the stop ----> ENDED (reason)
//
// HANDSHAKE is that of TLS before the client's first byte, and HEAD its rest as well.
//
// Invariants
//  1. The word has a count of steps above three bits of the kind. Each step of the connection adds 1, so a word that
//     has not changed means that nothing happened.
//  2. The connection's steps are exchanges from the value that it stored last. One that fails means ENDED.
//  3. Only the connection leaves ENDED, by `restart`.

/// The current step of a connection, and its end by others.
struct Phase: ~Copyable, Sendable {
  enum Kind: UInt64, Sendable {
    case idle, head, busy, reading, writing, upgraded, handshake
    case ended = 7
  }

  enum Reason: UInt64, Sendable {
    case idleForTooLong, headLate, bodyLate, stalled, stopped, gaveWay, peerHasGone

    /// The cause that a cancelled handler sees.
    var error: HTTPError {
      switch self {
      case .idleForTooLong, .headLate, .stopped, .gaveWay: .headLate
      case .bodyLate: .bodyLate
      case .stalled: .stalled
      case .peerHasGone: .peerHasGone
      }
    }
  }

  private let word = Atomic<UInt64>(0)

  var seen: UInt64 { word.load(ordering: .sequentiallyConsistent) }

  static func kind(of word: UInt64) -> Kind { Kind(rawValue: word & 7) ?? .ended }

  /// Moves on to a step from `current`, the connection's last one; returns false if the connection was ended.
  func enter(_ kind: Kind, from current: inout UInt64) -> Bool {
    let next = ((current & ~7) &+ 8) & ~Self.endedBit | kind.rawValue
    let (isExchanged, _) = word.compareExchange(
      expected: current,
      desired: next,
      ordering: .sequentiallyConsistent
    )
    if isExchanged { current = next }
    return isExchanged
  }

  private static var endedBit: UInt64 { 1 << 63 }

  /// Ends the connection if its word is still `seen`.
  func end(_ seen: UInt64, because reason: Reason) -> Bool {
    word.compareExchange(
      expected: seen,
      desired: Self.endedBit | reason.rawValue << 3 | Kind.ended.rawValue,
      ordering: .sequentiallyConsistent
    ).exchanged
  }

  func end(ifIdleBecause reason: Reason) -> Bool {
    let seen = seen
    return Self.isIdle(seen) && end(seen, because: reason)
  }

  /// Whether the client has sent nothing, or nothing since the last response.
  var isIdle: Bool { Self.isIdle(seen) }

  private static func isIdle(_ word: UInt64) -> Bool {
    switch kind(of: word) {
    case .idle, .handshake: true
    default: false
    }
  }

  /// Why the connection was ended; nil if it was not.
  var reason: Reason? {
    let seen = seen
    return seen & Self.endedBit == 0 ? nil : Reason(rawValue: (seen & ~Self.endedBit) >> 3)
  }

  /// Begins anew after an end.
  func restart(_ current: inout UInt64) {
    current = Kind.busy.rawValue
    word.store(current, ordering: .sequentiallyConsistent)
  }
}
#endif
