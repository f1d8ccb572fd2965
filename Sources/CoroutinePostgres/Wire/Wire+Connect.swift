#if Postgres
internal import CPostgres
import Coroutine

extension Wire {
  /// Connects to the first address that answers as it should, and sets what the settings say.
  ///
  /// Each address has a limit of its own, of the time that is left. One that has answered by an error is the last, as
  /// for libpq, unless it is starting: the others have the same password. Suspends; throws `.cannotConnect`, or the
  /// cancellation error.
  static func connect(to server: Server, settings: Settings, within left: Duration) throws -> Wire {
    let end = ContinuousClock.now + left
    let targets = try server.targets()
    var refusals: [PostgresError] = []
    for (index, parameters) in targets.enumerated() {
      let limit = Server.limit(parameters, left: end - .now, count: targets.count - index)
      do {
        return try co_timeout(limit) { try connect(parameters, settings) }
      } catch is TimeoutError where !co_isCancelled {
        let name = parameters["hostaddr"] ?? parameters["host"] ?? "the server"
        refusals.append(PostgresError(.cannotConnect, "\(name) has not answered within \(limit)"))
      } catch let error as PostgresError {
        refusals.append(error)
        if let state = error.sqlState, state != .startingUp { break }
      }
    }
    guard var last = refusals.last else { throw PostgresError(.cannotConnect, "the address has no host") }
    // Another one may answer the next time.
    last.isFinal = refusals.allSatisfy(\.isFinal)
    if refusals.count > 1 { last.message = refusals.map(\.message).joined(separator: "; ") }
    throw last
  }

  private static func connect(_ parameters: [String: String], _ settings: Settings) throws -> Wire {
    var parameters = parameters
    // A token may have expired since the last connection.
    if let password = try settings.password?() {
      if password.utf8.contains(0) {
        // libpq would take what stands before it for the whole.
        var error = PostgresError(.cannotConnect, "the password has a zero byte; give one without it")
        error.isFinal = true
        throw error
      }
      parameters["password"] = password
    }
    guard let pg = withParameters(parameters, { PQconnectStartParams($0, $1, 0) }) else {
      throw PostgresError(.cannotConnect, "there is no memory for a connection")
    }
    let wire = Wire(pg, settings: settings)
    wire.needsWrites = ["read-write", "primary"].contains(parameters["target_session_attrs"])
    // Only verbose messages contain the code of a refused connection: libpq has no function for it.
    PQsetErrorVerbosity(pg, PQERRORS_VERBOSE)
    // libpq's own write to standard error.
    PQsetNoticeReceiver(pg, { _, _ in }, nil)
    try wire.poll()
    PQsetErrorVerbosity(pg, PQERRORS_DEFAULT)
    try wire.begin()
    do { try wire.setUp() } catch let error as PostgresError {
      throw PostgresError(.cannotConnect, error.message, sqlState: error.sqlState)
    }
    return wire
  }

  private func poll() throws {
    var next = PGRES_POLLING_WRITING
    while PQstatus(pg) != CONNECTION_BAD {
      // The socket may be another one after each step: libpq tries again without TLS where the parameters allow that.
      switch next {
      case PGRES_POLLING_OK: return
      case PGRES_POLLING_READING: try co_untilReadable(PQsocket(pg))
      case PGRES_POLLING_WRITING: try co_untilWritable(PQsocket(pg))
      default: throw refusal()
      }
      next = PQconnectPoll(pg)
    }
    throw refusal()
  }

  /// Why there is no connection.
  private func refusal() -> PostgresError {
    let text = String(cString: PQerrorMessage(pg))
    var state: SQLState?
    for line in text.split(separator: "\n") {
      if let match = line.firstMatch(of: #/:  ([0-9A-Z]{5}): /#) { state = SQLState(rawValue: String(match.1)) }
    }
    let lines = text.split(separator: "\n").filter { !$0.hasPrefix("LOCATION:") }
    var error = PostgresError(.cannotConnect, lines.joined(separator: "; "), sqlState: state)
    error.isFinal = PQconnectionNeedsPassword(pg) == 1 || !lines.isEmpty && lines.allSatisfy(Self.isFinal)
    return error
  }

  /// Whether libpq speaks of a parameter, of a certificate that is refused, or of a server without TLS where the
  /// parameters ask for it; it has no codes.
  ///
  /// Names of hosts and folders stand before "failed: ".
  private static func isFinal(_ line: Substring) -> Bool {
    let reason = line.ranges(of: "failed: ").first.map { line[$0.upperBound...] } ?? line
    return finalWords.contains { reason.contains($0) } || reason.contains(#/invalid [a-z_]+ value|invalid port number/#)
  }

  private static let finalWords = [
    "certificate verify failed", "server certificate for", "root certificate file", "does not support SSL",
  ]

  /// Sets the limits of the session, by statements, because a pooler may refuse them as parameters; and asks for the
  /// server's `epoch`.
  func setUp() throws {
    defer { isUTC = readsUTC }
    if settings.isPooledByTransaction { return }
    // A Date that is written to a `timestamp`, and one that is read from it, are converted by the session's zone.
    var statements = ["set timezone = 'UTC'"]
    if let limit = settings.statementTimeout { statements.append("set statement_timeout = \(limit.inMilliseconds)") }
    if let limit = settings.idleInTransactionTimeout {
      statements.append("set idle_in_transaction_session_timeout = \(limit.inMilliseconds)")
    }
    statements.append("select stats_reset::text from pg_stat_bgwriter")
    epoch = try command(statements.joined(separator: ";")).string(0, 0)
  }
}

extension Wire {
  /// What the server has said last of its zone.
  var readsUTC: Bool {
    guard let zone = PQparameterStatus(pg, "TimeZone") else { return false }
    return ["UTC", "Etc/UTC", "GMT", "Etc/GMT", "UCT", "Etc/UCT", "Zulu", "Etc/Zulu"].contains(String(cString: zone))
  }

  /// Resets what statements have left in the session; breaks the connection if that is not confirmed in time.
  ///
  /// Not cancelled itself; takes `cancelTimeout` at most.
  func reset() {
    co_shield {
      do {
        try co_timeout(settings.cancelTimeout) {
          if !isIdle { try command("rollback") }
          try command("discard all")
          prepared.removeAll()
          try setUp()
          isChanged = false
        }
      } catch { isBroken = true }
    }
  }
}

extension Duration {
  /// At least 1, because 0 is no limit for the server.
  var inMilliseconds: Int64 {
    let limit = Duration.milliseconds(Int(Int32.max))
    let (seconds, attoseconds) = min(max(self, .milliseconds(1)), limit).components
    return seconds * 1000 + attoseconds / 1_000_000_000_000_000
  }
}
#endif
