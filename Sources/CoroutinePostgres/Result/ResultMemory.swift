#if Postgres
internal import CPostgres
import Glibc

/// A result of libpq.
///
/// Values are read where they lie, in libpq's memory.
@usableFromInline final class ResultMemory: @unchecked Sendable {
  // Sound because nothing changes a PGresult after its creation, and libpq allows threads to read one at the same time.
  let result: OpaquePointer

  /// Takes the result over.
  init(_ result: OpaquePointer) { self.result = result }
  deinit { PQclear(result) }

  var status: ExecStatusType { PQresultStatus(result) }
  var count: Int { Int(PQntuples(result)) }
  var columnCount: Int { Int(PQnfields(result)) }
  /// The first word of the command tag and what follows: "COMMIT", "INSERT 0 1".
  var tag: String { String(cString: PQcmdStatus(result)) }
  /// Whether the statement has removed all that are prepared, so that those of the cache are gone.
  var hasRemovedStatements: Bool {
    // Most statements are seen to be others by their first letter.
    guard let tag = PQcmdStatus(result), UInt8(bitPattern: tag[0]) == UInt8(ascii: "D") else { return false }
    return strcmp(tag, "DISCARD ALL") == 0 || strcmp(tag, "DEALLOCATE ALL") == 0
  }
  var affected: Int { Int(String(cString: PQcmdTuples(result))) ?? count }

  func name(_ column: Int) -> String { PQfname(result, Int32(column)).map { String(cString: $0) } ?? "" }
  func type(_ column: Int) -> UInt32 { PQftype(result, Int32(column)) }
  func isText(_ column: Int) -> Bool { PQfformat(result, Int32(column)) == 0 }

  /// The first column of this name.
  func column(named name: String) -> Int? {
    (0..<columnCount).first { strcmp(PQfname(result, Int32($0)), name) == 0 }
  }

  /// The bytes of a value; nil is null.
  ///
  /// Valid as long as the result.
  func bytes(_ row: Int, _ column: Int) -> UnsafeRawBufferPointer? {
    if PQgetisnull(result, Int32(row), Int32(column)) == 1 { return nil }
    let length = Int(PQgetlength(result, Int32(row), Int32(column)))
    return UnsafeRawBufferPointer(start: PQgetvalue(result, Int32(row), Int32(column)), count: length)
  }

  /// The text of a value, for results of statements of this product.
  func string(_ row: Int, _ column: Int) -> String? { bytes(row, column).map { String(decoding: $0, as: UTF8.self) } }

  // MARK: Decoding

  /// A value that is not null.
  @usableFromInline struct Cell {
    /// Valid as long as the result.
    @usableFromInline let bytes: UnsafeRawBufferPointer
    @usableFromInline let type: UInt32
    @usableFromInline let isText: Bool
  }

  /// Decodes a value; the error names the column.
  @inlinable func decode<V: PostgresDecodable>(_ row: Int, _ column: Int, as type: V.Type) throws -> V {
    guard let cell = try cell(row, column) else { return try null(column, as: type) }
    // The bytes are in the memory of this object, which the caller may have used for the last time.
    return try withExtendedLifetime(self) {
      do { return try V(postgres: cell.bytes, type: cell.type, isText: cell.isText) } catch let error as PostgresError {
        throw misfit(column, error, "\(V.self)")
      }
    }
  }

  /// A value; nil is null.
  @usableFromInline func cell(_ row: Int, _ column: Int) throws -> Cell? {
    guard column < columnCount else {
      throw PostgresError(.decoding, "the row has \(columnCount) columns, so there is none for value \(column + 1)")
    }
    return bytes(row, column).map { Cell(bytes: $0, type: type(column), isText: isText(column)) }
  }

  @usableFromInline func null<V: PostgresDecodable>(_ column: Int, as type: V.Type) throws -> V {
    if let nullable = V.self as? any Nullable.Type, let null = nullable.null as? V { return null }
    throw named(
      column,
      PostgresError(.decoding, "the value of column '\(name(column))' is null, and \(V.self) is no Optional")
    )
  }

  @usableFromInline func misfit(_ column: Int, _ error: PostgresError, _ type: String) -> PostgresError {
    var error = error
    error.message = "column '\(name(column))' as \(type): \(error.message)"
    return named(column, error)
  }

  private func named(_ column: Int, _ error: PostgresError) -> PostgresError {
    var error = error
    error.column = name(column)
    return error
  }
}
#endif
