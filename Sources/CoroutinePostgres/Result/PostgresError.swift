#if Postgres
/// An error of the server, of the connection to it, or of a value.
///
/// The static members are patterns: `catch PostgresError.lost` catches it for every ``message``.
public struct PostgresError: Error, Sendable, CustomStringConvertible {
  /// What has happened.
  ///
  /// A later version may know more, so a `switch` over it needs a `default`.
  public struct Kind: Sendable, Hashable, CustomStringConvertible {
    private enum Name: String {
      case server, lost, cannotConnect, poolTimeout, rolledBack, commitUnknown, decoding, busy, ended, leaseLost, notice
    }
    private let name: Name
    /// The word, as `cannotConnect`.
    public var description: String { name.rawValue }

    /// The server has refused the statement.
    ///
    /// The connection lives; in a transaction every later statement fails.
    public static var server: Kind { Kind(name: .server) }
    /// The connection has ended; the statement may have taken effect.
    public static var lost: Kind { Kind(name: .lost) }
    /// The server refused, was unreachable, knew another password, or was full for longer than `acquireTimeout`.
    public static var cannotConnect: Kind { Kind(name: .cannotConnect) }
    /// No connection became free within `acquireTimeout`; the description says which coroutines hold them.
    public static var poolTimeout: Kind { Kind(name: .poolTimeout) }
    /// The server has answered COMMIT with ROLLBACK: an error inside of the transaction was swallowed.
    public static var rolledBack: Kind { Kind(name: .rolledBack) }
    /// The connection was lost during COMMIT, and the outcome could not be found out.
    public static var commitUnknown: Kind { Kind(name: .commitUnknown) }
    /// A value does not fit.
    ///
    /// The client found it, so the connection lives.
    public static var decoding: Kind { Kind(name: .decoding) }
    /// A second statement on a connection, at the same time or inside of a stream or a copy.
    public static var busy: Kind { Kind(name: .busy) }
    /// A transaction, a connection or a pool was used after its end.
    public static var ended: Kind { Kind(name: .ended) }
    /// CoroutineWork: another program holds the job or the lease by now, or may do so.
    public static var leaseLost: Kind { Kind(name: .leaseLost) }
    /// What the server says beside a result, for ``PostgresPool/Options/onNotice``; never thrown.
    public static var notice: Kind { Kind(name: .notice) }
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
  /// other code has removed, or that a change of a table or a type has outdated: the next run prepares it again.
  public var isRetryable: Bool {
    switch kind {
    case .server: sqlState == .serializationFailure || sqlState == .deadlock || hasNoEffect || isChangedUnderneath
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

  /// What is known, in one line, without values: a log may keep it.
  ///
  /// So `detail` is not in it, which may quote a row, nor what the server's sentence about a value (class 22) has in
  /// quotes.
  public var description: String {
    var text = "\(kind)"
    if let sqlState { text += " \(sqlState.rawValue)" }
    text += ": \(sqlState?.rawValue.hasPrefix("22") == true ? Self.withoutQuoted(message) : message)"
    if let hint { text += "; hint: \(hint)" }
    if let table { text += "; table: \(schema.map { $0 + "." } ?? "")\(table)" }
    if let column { text += "; column: \(column)" }
    if let constraint { text += "; constraint: \(constraint)" }
    if let statement { text += "; statement: \(statement)" }
    // One line for one event: the text of a statement often has several.
    return text.split(whereSeparator: \.isNewline).joined(separator: " ")
  }

  /// A sentence without what stands between its first and its last quote, in whatever language.
  private static func withoutQuoted(_ text: String) -> String {
    let quotes: Set<Character> = ["\"", "'", "«", "»", "„", "“", "”", "‚", "‘", "’", "「", "」"]
    guard let first = text.firstIndex(where: quotes.contains), let last = text.lastIndex(where: quotes.contains),
      first < last
    else { return text }
    return text[..<first] + "\"…\"" + text[text.index(after: last)...]
  }

  /// A value that does not fit; the reader of the row adds the column.
  static func misfit(_ reason: String, _ type: UInt32) -> PostgresError {
    PostgresError(.decoding, type == 0 ? reason : "\(reason) (type \(type))")
  }
}

extension PostgresError {
  /// The server has refused the statement.
  ///
  /// The connection lives; in a transaction every later statement fails.
  public static var server: PostgresError { PostgresError(.server, "") }
  /// The connection has ended; the statement may have taken effect.
  public static var lost: PostgresError { PostgresError(.lost, "") }
  /// The server refused, was unreachable, knew another password, or was full for longer than `acquireTimeout`.
  public static var cannotConnect: PostgresError { PostgresError(.cannotConnect, "") }
  /// No connection became free within `acquireTimeout`; the description says which coroutines hold them.
  public static var poolTimeout: PostgresError { PostgresError(.poolTimeout, "") }
  /// The server has answered COMMIT with ROLLBACK: an error inside of the transaction was swallowed.
  public static var rolledBack: PostgresError { PostgresError(.rolledBack, "") }
  /// The connection was lost during COMMIT, and the outcome could not be found out.
  public static var commitUnknown: PostgresError { PostgresError(.commitUnknown, "") }
  /// A value does not fit.
  ///
  /// The client found it, so the connection lives.
  public static var decoding: PostgresError { PostgresError(.decoding, "") }
  /// A second statement on a connection, at the same time or inside of a stream or a copy.
  public static var busy: PostgresError { PostgresError(.busy, "") }
  /// A transaction, a connection or a pool was used after its end.
  public static var ended: PostgresError { PostgresError(.ended, "") }
  /// CoroutineWork: another program holds the job or the lease by now, or may do so.
  public static var leaseLost: PostgresError { PostgresError(.leaseLost, "") }

  /// Matches a caught error of the same ``kind``: `catch PostgresError.leaseLost`.
  public static func ~= (pattern: PostgresError, error: any Error) -> Bool {
    (error as? PostgresError)?.kind == pattern.kind
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

  static let readOnly = SQLState(rawValue: "25006")
  static let internalError = SQLState(rawValue: "XX000")
  static let undefinedObject = SQLState(rawValue: "42704")
  static let notInThisTransaction = SQLState(rawValue: "25000")
  static let startingUp = SQLState(rawValue: "57P03")
  static let outdatedPlan = SQLState(rawValue: "0A000")
  static let noSuchStatement = SQLState(rawValue: "26000")
  static let nameTooLong = SQLState(rawValue: "42622")
}
#endif
