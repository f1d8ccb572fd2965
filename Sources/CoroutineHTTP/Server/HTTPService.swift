#if HTTP
import Coroutine
import CoroutineNet
import Synchronization

// The connections of one server, and the coroutine that looks after them.
//
// No request sets a timer. Each connection has a word that says what it does and changes with each step
// (Phase.swift). The sweep reads the words several times in each limit, and ends the connections whose word has
// stayed the same for a whole limit. Only while there are connections.
//
// Invariants
//  1. An entry is in the table from the moment at which its scope exists until the scope's body is over.
//  2. A connection is ended by an exchange of its word, and then by the cancellation of its scope. The exchange has
//  one
//     winner: the sweep, the stop, or the connection's next step.
//  3. `isStopping` is stored before the words are read, and a connection reads it after it has stored that it is
//  idle.
//     So of a stop and a connection that gets idle, at least one sees the other.

final class HTTPService: Sendable {
  let options: HTTPServer.Options
  let handle: HTTPServer.Handler
  private let stopping = Atomic<Bool>(false)
  private let table = ThreadMutex<[ObjectIdentifier: Entry]>([:])
  /// Released by the first connection after none; the sweep waits for it.
  private let isNeeded = FairSemaphore(0, limit: .unbounded)

  struct Entry {
    let connection: HTTPConnection
    let scope: Scope
  }

  init(_ options: HTTPServer.Options, _ handle: @escaping HTTPServer.Handler) {
    self.options = options
    self.handle = handle
  }

  var isStopping: Bool { stopping.load(ordering: .sequentiallyConsistent) }

  func add(_ connection: HTTPConnection, _ scope: Scope) {
    let isFirst = table.withLock {
      $0[ObjectIdentifier(connection)] = Entry(connection: connection, scope: scope)
      return $0.count == 1
    }
    if isFirst { isNeeded.release() }
  }

  func remove(_ connection: HTTPConnection) {
    _ = table.withLock { $0.removeValue(forKey: ObjectIdentifier(connection)) }
  }

  private var entries: [Entry] { table.withLock { Array($0.values) } }

  // MARK: The end

  /// Ends the idle connections; the others end with their current request.
  func stop() {
    stopping.store(true, ordering: .sequentiallyConsistent)
    for entry in entries where entry.connection.phase.end(ifIdleBecause: .stopped) { entry.scope.cancel() }
  }

  // MARK: The sweep

  /// Looks after the connections until it is cancelled.
  func sweep() throws {
    let limits = [options.idle, options.headTime, options.pause]
    let interval = max(.milliseconds(5), min(.milliseconds(250), (limits.min() ?? .seconds(1)) / 4))
    func sweeps(_ limit: Duration) -> Int { Int(min(limit / interval, 1e9).rounded(.up)) + 1 }
    let most = Limits(idle: sweeps(options.idle), head: sweeps(options.headTime), pause: sweeps(options.pause))
    while true {
      try isNeeded.acquire()
      while true {
        try co_delay(interval)
        let entries = entries
        if entries.isEmpty { break }
        for entry in entries where entry.connection.hasExpired(most) {
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
#endif
