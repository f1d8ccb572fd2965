#if Postgres
/// An error of the server, of the connection to it, or of a value.
public struct PostgresError: Error, Sendable, CustomStringConvertible {
  /// What has happened.
  public enum Kind: Sendable, Hashable {
    /// The server has refused the statement. The connection lives; in a transaction every later statement fails.
    case server
    /// The connection has ended; the statement may have taken effect.
    case lost
    /// The server refused, was unreachable, knew another password, or was full for longer than `acquireTimeout`.
    case cannotConnect
    /// No connection became free within `acquireTimeout`; the description says which coroutines hold them.
    case poolTimeout
    /// The server has answered COMMIT with ROLLBACK: an error inside of the transaction was swallowed.
    case rolledBack
    /// The connection was lost during COMMIT, and the outcome could not be found out.
    case commitUnknown
    /// A value does not fit. The client found it, so the connection lives.
    case decoding
    /// A second statement on a connection, at the same time or inside of a stream or a copy.
    case busy
    /// A transaction, a connection or a pool was used after its end.
    case ended
    /// CoroutineWork: another program holds the job or the lease by now, or may do so.
    case leaseLost
  }

  /// What has happened.
  public var kind: Kind
  /// The server's code, also of a refused connection.
  public var sqlState: SQLState?
  /// The server's sentence, in its language.
  public var message: String
  /// What the server says beside it, where it does.
  public var detail, hint, schema, table, column, constraint: String?
  /// The text of the statement, never its values.
  public var statement: String?

  /// Whether nothing was committed: the connection was lost before COMMIT was sent, the server has said so, or it has
  /// refused what was sent in front of COMMIT.
  var hasNoEffect = false
  /// The server's function that has found the error.
  var routine: String?
  /// Whether another attempt to connect fails as well: what is missing is here, and the server has no code for it.
  var isFinal = false

  /// Whether the same transaction may succeed if it runs again.
  ///
  /// True for 40001, 40P01, losses after which nothing was committed, and a prepared statement of this product that
  /// other code has removed.
  public var isRetryable: Bool {
    switch kind {
    case .server: sqlState == .serializationFailure || sqlState == .deadlock || hasNoEffect
    case .lost: hasNoEffect
    default: false
    }
  }

  package init(_ kind: Kind, _ message: String, sqlState: SQLState? = nil, statement: String? = nil) {
    self.kind = kind
    self.message = message
    self.sqlState = sqlState
    self.statement = statement
  }

  /// One line for each thing that is known; without values.
  public var description: String {
    var text = "\(kind)"
    if let sqlState { text += " \(sqlState.rawValue)" }
    text += ": \(message)"
    if let detail { text += "\n  detail: \(detail)" }
    if let hint { text += "\n  hint: \(hint)" }
    if let table { text += "\n  table: \(schema.map { $0 + "." } ?? "")\(table)" }
    if let column { text += "\n  column: \(column)" }
    if let constraint { text += "\n  constraint: \(constraint)" }
    if let statement { text += "\n  statement: \(statement)" }
    return text
  }

  /// A value that does not fit; the reader of the row adds the column.
  static func misfit(_ reason: String, _ type: UInt32) -> PostgresError {
    PostgresError(.decoding, type == 0 ? reason : "\(reason) (type \(type))")
  }
}

/// Five characters of the SQL standard: `catch let e as PostgresError where e.sqlState == .uniqueViolation`.
public struct SQLState: RawRepresentable, Hashable, Sendable {
  /// The five characters.
  public var rawValue: String
  /// Creates a code.
  public init(rawValue: String) { self.rawValue = rawValue }

  /// A row with the same key is there already: 23505.
  public static let uniqueViolation = SQLState(rawValue: "23505")
  /// Transactions at the same time have no order, and this one can be run again: 40001.
  public static let serializationFailure = SQLState(rawValue: "40001")
  /// 40P01.
  public static let deadlock = SQLState(rawValue: "40P01")
  /// 57014, also by statement_timeout.
  public static let queryCancelled = SQLState(rawValue: "57014")
  /// The server has as many connections as it may have: 53300.
  public static let tooManyConnections = SQLState(rawValue: "53300")
  /// 57P01.
  public static let adminShutdown = SQLState(rawValue: "57P01")

  static let startingUp = SQLState(rawValue: "57P03")
  static let outdatedPlan = SQLState(rawValue: "0A000")
  static let noSuchStatement = SQLState(rawValue: "26000")
  static let nameTooLong = SQLState(rawValue: "42622")
}
#endif
