#if HTTP
import Coroutine
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
/// its connection, so the answers to pipelined requests have the order of the requests.
public enum HTTPServer {
  typealias Handler = @Sendable (borrowing ServerRequest, inout ServerResponse) throws -> Void

  /// The limits of a server; a negative number counts as 0.
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

    /// The options with numbers that can be added and multiplied; offsets in a head have 32 bits.
    fileprivate var clamped: Options {
      var options = self
      options.headSize = min(max(0, headSize), 1 << 30)
      options.bodySize = max(0, bodySize)
      options.discardedSize = min(max(0, discardedSize), 1 << 60)
      return options
    }
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
//   IDLE --first byte--> HEAD --complete--> BUSY <--> READING, WRITING      UPGRADED: for ever
//     |                    |                  |            |
//     +--------------------+------------------+------------+---- the sweep or the stop ----> ENDED (reason)
//
// Invariants
//  1. The word has a count of steps above three bits of the kind. Each step of the connection adds 1, so a word that
//     has not changed means that nothing happened.
//  2. The connection's steps are exchanges from the value that it stored last. One that fails means ENDED.
//  3. Only the connection leaves ENDED, by `restart`.

/// The current step of a connection, and its end by others.
struct Phase: ~Copyable, Sendable {
  enum Kind: UInt64, Sendable {
    case idle, head, busy, reading, writing, upgraded
    case ended = 7
  }

  enum Reason: UInt64, Sendable {
    case idleForTooLong, headLate, bodyLate, stalled, stopped, peerHasGone

    /// The cause that a cancelled handler sees.
    var error: HTTPError {
      switch self {
      case .idleForTooLong, .headLate, .stopped: .headLate
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
    return Self.kind(of: seen) == .idle && end(seen, because: reason)
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
