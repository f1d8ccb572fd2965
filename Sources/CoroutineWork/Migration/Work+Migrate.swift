#if Postgres
import Coroutine
public import CoroutinePostgres

// The tables know their version and their major version. A later version of the same major version only adds: tables,
// columns with a default, indexes. So a program of an earlier version keeps running beside, because its statements
// name their columns. A program refuses tables of a later major version.

/// Durable work on PostgreSQL: queues, schedules and leases that survive the process.
public enum Work {
  /// Creates or upgrades the tables, in one transaction under a lock.
  ///
  /// If several programs run it at once, one does it.
  ///
  /// Asks the server. Never removes a column that the version before it reads, so old programs keep running beside. A
  /// schema that is there needs the right to create in it, and none to create schemas.
  /// - Throws: `WorkError.newerTables` if the tables are of a later major version.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public static func migrate(_ db: PostgresPool, schema: String = "work") throws {
    // A database in memory has them.
    if let memory = db.link { return try memory.check() }
    try db.transaction(retries: 3) { t in
      try t.run("select pg_advisory_xact_lock(hashtextextended(\("coroutine work \(schema)"), 0))")
      let version = try Tables.version(t, schema: schema)
      // `if not exists` needs the right to create schemas, also where it does nothing.
      let hasSchema = try t.first("select to_regnamespace(\(SQL.quoted(schema))) is not null", as: Bool.self) == true
      for statement in Tables.statements(schema: schema, from: version)
      where !(hasSchema && statement.hasPrefix("create schema ")) {
        try t.run(SQL(unchecked: statement))
      }
    }
  }

  /// Returns the same statements as text, for other migration tools.
  ///
  /// Never suspends; any thread.
  /// - Parameters:
  ///   - schema: The schema of the tables.
  ///   - version: The version that the tables have; 0 for none.
  public static func migration(schema: String = "work", from version: Int = 0) -> String {
    Tables.statements(schema: schema, from: version).map { $0 + ";\n" }.joined()
  }
}

enum Tables {
  /// The versions, in order.
  ///
  /// The last one is the version that this program needs at least.
  static let versions = [Version1.statements, Version2.statements]
  /// The major version that this program understands.
  static let major = 1

  static func statements(schema: String, from version: Int) -> [String] {
    guard version < versions.count else { return [] }
    let name = SQL.quoted(schema)
    return versions[max(version, 0)...].joined().map { text in
      // Not a replacement of the whole text at once: the schema's own name may contain the mark.
      text.split(separator: "{schema}", omittingEmptySubsequences: false).joined(separator: name)
    }
  }

  /// The version of the tables, 0 for none.
  ///
  /// Throws `newerTables` if their major version is later.
  static func version(_ session: some PostgresSession, schema: String) throws -> Int {
    let table = "\(SQL.quoted(schema)).version"
    guard try session.first("select to_regclass(\(table)) is not null", as: Bool.self) == true else { return 0 }
    let found = try session.first(
      "select version, major from \(identifier: schema).version order by version desc limit 1",
      as: (Int, Int).self
    )
    guard let (version, major) = found else { return 0 }
    if major > Tables.major { throw WorkError.newerTables(major) }
    return version
  }

  /// Throws unless the tables are there, and not older than this program.
  ///
  /// Asks the server.
  static func check(_ session: some PostgresSession, schema: String) throws {
    if let memory = (session as? PostgresPool)?.link { return try memory.check() }
    let found = try version(session, schema: schema)
    if found < versions.count { throw WorkError.olderTables(found) }
  }
}
#endif
