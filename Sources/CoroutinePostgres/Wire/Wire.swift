#if Postgres
internal import CPostgres
import Coroutine
import CoroutineNet
import Glibc
import Synchronization

/// One connection of libpq, set non-blocking.
///
///   READY --send--> ACTIVE --last result--> READY
///     |               | cancelled                       BROKEN: `isBroken`; every later use throws `.lost`
///     |               v
///     |            STOPPING --PQcancel has ended, and the last result is read--> READY
///     |               | `cancelTimeout`
///     +---loss--------+-----------------> BROKEN --deinit--> closed
///
/// Invariants
///  1. One coroutine at a time uses it: the pool hands it to one, and a session's `Claim` refuses a second one. The
///     pipeline and the listener use theirs under a lock.
///  2. A READY connection owes nothing: every result of its last statement has been read, and no cancellation of it is
///     under way. So the next statement gets its own result, and no cancellation of an earlier one.
///  3. While `pendingBegin` is there, a transaction's body runs, and nothing of it was sent. Whatever is sent next
///     sends it first, and the end of the body removes it.
///  4. `cancel` and `watch` are constants after `begin`: another thread may use them, to cancel or to shut down.
///     `watch` has a duplicate of libpq's descriptor, which libpq closes when it finds a loss: the number may be
///     another file's then.
///
/// Why no late cancellation hits the next statement. `PQcancel` returns after the server has closed the cancellation's
/// connection, and it does that after it has signalled the backend. The signal of a backend is pending then, so it is
/// handled before the backend reads another statement, where it has no effect. STOPPING is left for READY only after
/// `PQcancel` has returned, and otherwise for BROKEN.
final class Wire: @unchecked Sendable {
  // Sound because of invariant 1.
  let pg: OpaquePointer
  let settings: Settings
  /// The waits for the socket, which is watched once (Wire+Wait.swift); nil until `begin`.
  private(set) var watch: ForeignDescriptor?
  private(set) var cancel: CancelHandle?
  @exclusivity(unchecked) var isBroken = false
  /// The server's last sentence, if libpq has read it between two statements.
  private var farewell: PostgresError?
  @exclusivity(unchecked) var prepared: StatementCache
  /// What begins a transaction; it is sent together with the transaction's first statement.
  @exclusivity(unchecked) var pendingBegin: Begin?
  /// The number of the transaction that runs, if its first statement's exchange has told it and nothing was sent since
  /// that may have ended it; nil otherwise.
  @exclusivity(unchecked) var transactionID: String?
  /// Whether a coroutine uses it beyond its session's end; then nobody else may.
  let isAbandoned = Atomic<Bool>(false)
  /// The channels that it listens to.
  var channels: Set<String> = []
  /// Another text after each crash of the server, which loses its statistics; the same after an orderly restart.
  var epoch: String?
  let born = ContinuousClock.now
  /// The time after which the pool replaces it.
  let lifetime: Duration
  var idleSince = ContinuousClock.now

  struct Begin {
    var text: String
    /// Whether COMMIT will need the transaction's number.
    var needsID: Bool
  }

  /// What a connection knows of its pool's options.
  struct Settings: Sendable {
    var cancelTimeout: Duration
    var statementCache: Int
    var isPooledByTransaction: Bool
    var statementTimeout, idleInTransactionTimeout: Duration?
    var maxLifetime: Duration
    /// Called for each cancellation.
    var onCancel: @Sendable () -> Void = {}
  }

  /// Takes a connection over that is being made.
  init(_ pg: OpaquePointer, settings: Settings) {
    self.pg = pg
    self.settings = settings
    prepared = StatementCache(limit: settings.isPooledByTransaction ? 0 : settings.statementCache)
    // Less by up to a tenth, so that connections that were made together do not end together.
    lifetime = settings.maxLifetime * Double.random(in: 0.9...1)
  }

  deinit {
    watch?.end()
    PQfinish(pg)
  }

  /// Called once, when the connection is made; throws `.cannotConnect` if there is no descriptor left.
  func begin() throws {
    do { watch = try ForeignDescriptor(PQsocket(pg)) } catch { throw PostgresError(.cannotConnect, "\(error)") }
    // Before the first statement, and while this object lives, since the connection ends with it.
    PQsetNoticeReceiver(pg, Self.receiveNotice, Unmanaged.passUnretained(self).toOpaque())
    cancel = CancelHandle(pg)
    PQsetnonblocking(pg, 1)
  }

  var backend: Int32 { PQbackendPID(pg) }
  var isIdle: Bool { PQtransactionStatus(pg) == PQTRANS_IDLE }
  /// Whether the server has begun a statement that has not ended.
  var isActive: Bool { PQtransactionStatus(pg) == PQTRANS_ACTIVE }
  /// Whether the server accepts no statement but ROLLBACK.
  var hasFailed: Bool { PQtransactionStatus(pg) == PQTRANS_INERROR }

  /// Ends the connection under the coroutine that uses it: its waits return, and it finds a loss.
  ///
  /// Any thread, while the connection is not closed.
  func shutDown() { _ = watch?.withDuplicate { shutdown($0, Int32(SHUT_RDWR)) } }

  /// Gives it up while another coroutine still uses it, which finds a loss; its last release closes it.
  func abandon() {
    isAbandoned.store(true, ordering: .releasing)
    shutDown()
  }

  /// Whether it is usable, without a round trip; one system call if the server has said nothing.
  func isAlive() -> Bool {
    guard !isBroken, PQstatus(pg) == CONNECTION_OK, isIdle else { return false }
    let isSilent = watch?.withDuplicate { number in
      var query = pollfd(fd: number, events: Int16(POLLIN), revents: 0)
      return Glibc.poll(&query, 1, 0) == 0
    }
    if isSilent == true { return true }
    // Twice: the first reads the server's good-bye, the second finds the end.
    let isOpen = PQconsumeInput(pg) == 1 && PQconsumeInput(pg) == 1
    return isOpen && PQisBusy(pg) == 0 && PQstatus(pg) == CONNECTION_OK && isIdle
  }

  // MARK: Errors

  /// The connection has ended.
  func lost() -> PostgresError {
    isBroken = true
    return farewell ?? PostgresError(.lost, Server.line(String(cString: PQerrorMessage(pg))))
  }

  /// What a failed result says.
  ///
  /// A fatal error is the server's last sentence on this connection.
  func failure(_ memory: ResultMemory) -> PostgresError {
    var error = Self.error(memory.result)
    if PQstatus(pg) == CONNECTION_BAD || error.sqlState == nil { error.kind = .lost }
    guard error.kind == .lost else { return error }
    isBroken = true
    return error.sqlState == nil ? farewell ?? error : error
  }

  /// Receives notices, and errors that come between two statements: libpq takes these for notices.
  ///
  /// The server ends idle connections so. If the client is slow to read an answer, libpq finds the end behind it in
  /// the same read, and says nothing of the reason when it later finds that the connection has ended.
  private static let receiveNotice: PQnoticeReceiver = { context, result in
    guard let context, let result else { return }
    let error = Wire.error(result)
    guard error.kind == .lost else { return }
    let wire = Unmanaged<Wire>.fromOpaque(context).takeUnretainedValue()
    wire.farewell = error
    wire.isBroken = true
  }

  /// Reads an error of the server; `.lost` if it has ended the connection.
  private static func error(_ result: OpaquePointer) -> PostgresError {
    func field(_ code: Unicode.Scalar) -> String? {
      PQresultErrorField(result, Int32(code.value)).map { String(cString: $0) }
    }
    let severity = field("V")
    let isEnd = severity == "FATAL" || severity == "PANIC"
    let message = field("M") ?? Server.line(String(cString: PQresultErrorMessage(result)))
    var error = PostgresError(isEnd ? .lost : .server, message, sqlState: field("C").map { SQLState(rawValue: $0) })
    (error.detail, error.hint, error.schema, error.table) = (field("D"), field("H"), field("s"), field("t"))
    (error.column, error.constraint, error.routine) = (field("c"), field("n"), field("R"))
    return error
  }
}
#endif
