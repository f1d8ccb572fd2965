#if Postgres
import Coroutine
import CoroutineNet
internal import CPostgres
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
  /// The waits for the socket, which is watched once; nil until `begin`.
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
  /// Whether a statement has left something in the session; then it is reset before another coroutine gets it.
  @exclusivity(unchecked) var isChanged = false
  /// Whether the address asks for a server that writes.
  @exclusivity(unchecked) var needsWrites = false
  /// Whether a transaction runs that is not to write.
  @exclusivity(unchecked) var isReadOnly = false
  /// Whether the server has become another one than the address asks for, by a fail-over: then it is not used again.
  @exclusivity(unchecked) var isMisplaced = false
  /// Whether the session's zone is UTC: always, if a session may be set; and the case of most servers behind a pooler.
  @exclusivity(unchecked) var isUTC = true
  /// Whether a coroutine uses it beyond its session's end; then no other coroutine may.
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
    /// Asked for each connection.
    var password: (@Sendable () throws -> String)?
    var onNotice: (@Sendable (PostgresError) -> Void)?
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
  /// Whether there is no transaction, neither begun nor to be begun by its first statement.
  var hasNoTransaction: Bool { pendingBegin == nil && isIdle }
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
    if error.sqlState == .readOnly, needsWrites, !isReadOnly { isMisplaced = true }
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
    var error = Wire.error(result)
    let wire = Unmanaged<Wire>.fromOpaque(context).takeUnretainedValue()
    guard error.kind == .lost else {
      error.kind = .notice
      wire.settings.onNotice?(error)
      return
    }
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

// MARK: - Statements

extension Wire {
  /// Runs one statement, prepared by name where the settings say so, and returns its result.
  ///
  /// Asks the server: suspends, cancellation, loss and errors are as PostgresSession says.
  func run(_ statement: SQL) throws -> ResultMemory {
    let begin = pendingBegin
    do {
      try statement.checkValues()
      forgetNumber(before: statement)
      return try prepared.limit == 0 ? runUnnamed(statement) : runAgainIfOutdated(statement)
    } catch {
      // As `interruptible` does, whose closure would count a reference to each part of the statement.
      endInterrupted(error, begin)
      guard var refused = error as? PostgresError else { throw error }
      refused.statement = statement.text
      throw refused
    }
  }

  /// Reads a text that is not prepared; throws what must not be sent.
  ///
  /// Returns whether it may be prepared.
  @discardableResult
  func admit(_ statement: SQL) throws -> Bool {
    guard try statement.changesSession() else { return true }
    if settings.isPooledByTransaction {
      let rule = "behind a pooler in transaction mode a session is no one's: use set local, or locks of a transaction"
      throw PostgresError(.server, rule, sqlState: .notInThisTransaction)
    }
    isChanged = true
    return false
  }

  private func runUnnamed(_ statement: SQL) throws -> ResultMemory {
    try admit(statement)
    try beginTransaction()
    return try call { sendUnnamed(statement) }
  }

  private func runAgainIfOutdated(_ statement: SQL) throws -> ResultMemory {
    do { return try runPrepared(statement) } catch let error as PostgresError where error.isOutdated {
      // The table has changed since, or somebody has removed the statement. Nothing has run.
      let isGone = error.sqlState == .noSuchStatement
      if let name = prepared.remove(StatementCache.Key(statement)), !isGone { prepared.unused.append(name) }
      // In a transaction nothing more can run; the next one prepares it again.
      guard isIdle, !statement.mayCommitInside else { throw error }
      return try runPrepared(statement)
    }
  }

  /// Runs text of this product without parameters, in the simple protocol: begin, commit, set.
  @discardableResult
  func command(_ text: String) throws -> ResultMemory {
    transactionID = nil
    return try interruptible {
      try beginTransaction()
      return try call { PQsendQuery(pg, text) }
    }
  }

  private func runPrepared(_ statement: SQL) throws -> ResultMemory {
    let known = prepared.name(of: statement)
    if let known, let begin = pendingBegin, statement.fitsInPipeline { return try run(begin, and: statement, known) }
    // What is prepared was read before. What changes the session is seldom run, and would remove what is prepared.
    // In a failed transaction nothing can be prepared.
    if known == nil, try !admit(statement) || hasFailed {
      try beginTransaction()
      return try call { sendUnnamed(statement) }
    }
    try beginTransaction()
    let name = try known ?? prepare(statement)
    // As `call` does, which would count a reference to each part of the statement for its closure.
    try checkUse()
    try check(sendPrepared(statement, name))
    return try result()
  }

  func sendPrepared(_ statement: SQL, _ name: [CChar]) -> Int32 {
    let pg = pg
    return name.withUnsafeBufferPointer { name in
      let name = name.baseAddress
      return withParameters(of: statement) { count, _, values, lengths, formats in
        PQsendQueryPrepared(pg, name, count, values, lengths, formats, 1)
      }
    }
  }

  private func prepare(_ statement: SQL) throws -> [CChar] {
    let key = StatementCache.Key(statement)
    prepared.removeOldestIfFull()
    // Forgotten after it was sent: what is cancelled before stays for the next time.
    while let name = prepared.unused.last {
      try start { PQsendQuery(pg, "deallocate \(name)") }
      prepared.unused.removeLast()
      _ = try result()
    }
    let name = prepared.newName()
    try call { PQsendPrepare(pg, name, key.text, Int32(key.types.count), key.types) }
    return prepared.insert(key, name: name)
  }

  /// Sends a statement that the server forgets after it; the result is binary, or text.
  func sendUnnamed(_ statement: SQL, isText: Bool = false) -> Int32 {
    withParameters(of: statement) { count, types, values, lengths, formats in
      PQsendQueryParams(pg, statement.text, count, types, values, lengths, formats, isText ? 0 : 1)
    }
  }

  /// Runs `body`; if it is cancelled in the middle of a statement, ends the statement first.
  ///
  /// If the transaction has not begun nevertheless, its next statement begins it: a body that goes on after the error
  /// must not run its statements outside of its transaction.
  func interruptible<R>(_ body: () throws -> R) throws -> R {
    let begin = pendingBegin
    do { return try body() } catch {
      endInterrupted(error, begin)
      throw error
    }
  }

  private func endInterrupted(_ error: any Error, _ begin: Begin?) {
    if !(error is PostgresError), !isBroken, isActive { stop() }
    if let begin, !isBroken, isIdle { pendingBegin = begin }
  }

  // MARK: One exchange

  /// Sends, and returns the result; throws the server's error.
  ///
  /// `send` is a function of libpq.
  @discardableResult
  func call(_ send: () -> Int32) throws -> ResultMemory {
    try start(send)
    return try result()
  }

  /// Sends all of it.
  func start(_ send: () -> Int32) throws {
    try checkUse()
    try check(send())
  }

  /// Called before anything is sent, so that a cancelled coroutine, or code outside of one, has changed nothing.
  private func checkUse() throws {
    try co_checkCancelled()
    if isBroken { throw lost() }
  }

  /// Sends all that libpq has taken; `status` is the answer of its function.
  private func check(_ status: Int32) throws {
    guard status == 1 else {
      // libpq itself has refused it, or there is no connection any more.
      if PQstatus(pg) != CONNECTION_OK { throw lost() }
      throw PostgresError(.decoding, Server.line(String(cString: PQerrorMessage(pg))))
    }
    try flush()
  }

  func flush() throws {
    while true {
      switch PQflush(pg) {
      case 0: return
      case 1: try untilWritable()
      // What the server has said before it left is still to be read.
      default: return
      }
      if PQconsumeInput(pg) == 0 { return }
    }
  }

  /// All results of the statement; of several, the first error, or else the last one.
  func result() throws -> ResultMemory {
    var kept: ResultMemory?
    var error: PostgresError?
    while let next = try nextResult() {
      switch next.status {
      case PGRES_COPY_IN, PGRES_COPY_OUT, PGRES_COPY_BOTH:
        try endStrayCopy(next.status)
        if error == nil { error = PostgresError(.server, "run has no data for a copy: use copyIn or copyOut") }
      case PGRES_FATAL_ERROR, PGRES_BAD_RESPONSE:
        // What follows the first error is the loss of the connection.
        if error == nil || next.status == PGRES_BAD_RESPONSE { error = failure(next) } else { _ = failure(next) }
      default:
        if next.hasRemovedStatements { prepared.removeAll() }
        kept = next
      }
    }
    if let error { throw error }
    guard let kept else { throw lost() }
    return kept
  }

  /// The next result of the statement; nil after the last one.
  ///
  /// A transaction may have a zone of its own, which ends with it.
  func nextResult() throws -> ResultMemory? {
    while PQisBusy(pg) == 1 {
      try untilReadable()
      // After a loss, PQgetResult returns what the server has said last.
      if PQconsumeInput(pg) == 0 { break }
    }
    if let result = PQgetResult(pg) { return ResultMemory(result, isUTC: isChanged || !isIdle ? readsUTC : isUTC) }
    // In pipeline mode it ends one statement of several.
    if PQpipelineStatus(pg) == PQ_PIPELINE_OFF {
      settle()
      try checkEncoding()
    }
    return nil
  }

  /// Throws `.lost` if a statement has set another encoding: texts would be stored as others, without an error.
  ///
  /// Called after each statement. The server tells a change before the end of the statement that has made it.
  func checkEncoding() throws {
    if PQstatus(pg) == CONNECTION_BAD || PQclientEncoding(pg) == Self.encoding { return }
    farewell = PostgresError(.lost, "a statement has set client_encoding, which is UTF8; the connection is closed")
    throw lost()
  }
  private static let encoding = pg_char_to_encoding("UTF8")

  private func endStrayCopy(_ status: ExecStatusType) throws {
    if status == PGRES_COPY_IN {
      PQputCopyEnd(pg, "run has no data for a copy")
      return try flush()
    }
    while try nextCopyData() != nil {}
  }

  /// The next piece of `copy … to stdout`; nil at the end.
  func nextCopyData() throws -> [UInt8]? {
    while true {
      var data: UnsafeMutablePointer<CChar>?
      let count = Int(PQgetCopyData(pg, &data, 1))
      if count > 0 {
        defer { PQfreemem(data) }
        return Array(UnsafeRawBufferPointer(start: data, count: count))
      }
      if count < 0 { return nil }  // the result says whether it was all
      try untilReadable()
      if PQconsumeInput(pg) == 0 { throw lost() }
    }
  }
}

extension PostgresError {
  /// Whether a prepared statement has to be prepared again.
  var isOutdated: Bool { sqlState == .noSuchStatement || isChangedUnderneath }

  /// Whether a table or a type has changed since a statement was prepared.
  ///
  /// The code of an outdated plan has other meanings as well. A type that was dropped, and made again by the same name,
  /// has another number, and the statement was prepared for the old one: the server finds that before it runs the
  /// statement, or undoes it.
  var isChangedUnderneath: Bool {
    switch sqlState {
    case .outdatedPlan: routine == "RevalidateCachedQuery"
    case .internalError: message.hasPrefix("cache lookup failed for type")
    case .undefinedObject: routine == "lookup_type_cache"
    default: false
    }
  }
}

// MARK: - Waiting for the server

// The waits for the socket, which is registered with the kernel once.
//
// libpq does not read until it would block, so after a read the socket may have more. A wait therefore polls, unless
// `settle` has said that nothing more is needed:
//
//   a statement is sent --> wait: no system call --event--> recv --last result--> settle
//
// `settle` after the last result is right, although libpq has not seen EAGAIN. Its last read was shorter than its
// buffer, or has left what the server says by itself between two statements. Nothing waits for that: the next wait is
// for the answer to the next statement, which comes later and has an event. The end of the connection comes once, and
// may come before the last result is read. The next statement waits for it, after the server's last sentence. So
// readiness stays if the server has closed. The listener does wait for what the server says by itself, and does not
// settle.

extension Wire {
  /// Suspends until there may be input.
  func untilReadable() throws { try wait(for: .readable) }

  /// Suspends until there may be room for output, or input: the server may wait for us to read before it reads.
  func untilWritable() throws { try wait(for: [.readable, .writable]) }

  private func wait(for readiness: ForeignDescriptor.Readiness) throws {
    guard let watch else { throw lost() }
    do { try watch.wait(for: readiness) } catch let error as NetError {
      isBroken = true
      throw PostgresError(.lost, "\(error)")
    }
  }

  /// Says that the server owes nothing: the next wait is for the answer to what is sent next.
  func settle() { watch?.settle(.readable, afterShortRead: true) }
}
#endif
