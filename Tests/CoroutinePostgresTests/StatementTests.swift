#if Postgres
import FoundationEssentials
import Testing

@testable import CoroutinePostgres

@Suite(.timeLimit(.minutes(10)))
struct StatementTests {
  @Test func `a value becomes a parameter and never text`() {
    let name = "x'; drop table people; --"
    let statement: SQL = "select * from people where name = \(name) and age > \(7)"
    #expect(statement.text == "select * from people where name = $1 and age > $2")
    #expect(statement.values.map(\.type) == [25, 20])
    #expect(statement.encoded[0] == Array(name.utf8))
    #expect("\(statement)" == statement.text)
  }

  @Test func `a part brings its parameters along under new numbers`() {
    let age: SQL = "age > \(7) and age < \(9)"
    let both: SQL = "select \(1) where \(age) or \(age) limit \(3)"
    #expect(both.text == "select $1 where age > $2 and age < $3 or age > $4 and age < $5 limit $6")
    #expect(both.encoded.map { $0?.last } == [1, 7, 9, 7, 9, 3])
  }

  @Test func `a part with numbers of its own is renumbered but not inside of strings and comments`() {
    let text = #"$2 = $1 and '$1' = E'a\'$1' and "$1" = $$ $1 $$ and $a$ $1 $$ $a$ /* $1 /* */ $1 */ = a$1 -- $1"#
    let part = SQL(unchecked: text + "\n and $1", [1, "two"])
    let whole: SQL = "select \(0), \(part)"
    let expected = #"$3 = $2 and '$1' = E'a\'$1' and "$1" = $$ $1 $$ and $a$ $1 $$ $a$ /* $1 /* */ $1 */ = a$1 -- $1"#
    #expect(whole.text == "select $1, " + expected + "\n and $2")
    #expect(whole.values.count == 3)
    #expect(whole.encoded == [[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1], Array("two".utf8)])
  }

  @Test func `a value that the text does not use is refused`() throws {
    let part = "love"
    let unused: [SQL] = [
      "select name from people where name like '%\(part)%'", "delete from log where at < now() - interval '\(30) days'",
      "select 1 -- \(part)", "select 1 /* /* */ \(part) */", "select $$\(part)$$", "select $a$ $$ \(part) $a$",
      "select 1 as \"\(part)\"", #"select e'\'\#(part)'"#, "select E'\(part)'", "select U&'\(part)'", "select b'\(1)'",
      "select jsonb_path_query(body, '$.a ? (@ > \(7))') from events", "select a\(part) from t", "select \(1), '\(2)'",
      "limit \(1)0", SQL(unchecked: "select '%$1%'", [part]), SQL(unchecked: "select $1", [part, part]),
      SQL(unchecked: "select $2, $3", [part, part, part]),
      "select * from (\(SQL(unchecked: "select '$1'", [part]))) a where b = \(1)", "select e'a'\n'\\'\(part)'",
      "select e'a' \r\n\t 'b'\n'\\'\(part)'",
    ]
    for statement in unused {
      #expect(kind { try statement.changesSession() } == .decoding, "\(statement)")
    }
    let used: [SQL] = [
      "select 'a''b' || \(part)", "select \(1)::text -- it's", "select '' like \(part) /* ' */",
      #"select '\' || \#(part)"#, #"select e'\\' || \#(part)"#, "select $a$'$a$ || \(part)",
      "select e'a'\n, '\\' || \(part)", "select e'a'\n|| \(part)",
      "select a[\(1):\(2)], \(3)+\(4)", "select \"a'b\", \(part)",
      SQL(unchecked: "select $2 || $1 || $1", [part, part]),
    ]
    for statement in used { #expect(throws: Never.self) { try statement.changesSession() } }
  }

  @Test func `a conformance that assigns its bytes leaves those of other values`() {
    let (first, nothing, last) = (Assigning(bytes: [1]), Assigning(bytes: []), Assigning(bytes: [4, 5]))
    let statement: SQL = "select \(7), \(first), \(nothing), \("x"), \(last)"
    let expected: [[UInt8]?] = [[0, 0, 0, 0, 0, 0, 0, 7], [1], [], [UInt8(ascii: "x")], [4, 5]]
    #expect(statement.encoded == expected)
    #expect(SQL(unchecked: "select $1, $2", [first, last]).encoded == [[1], [4, 5]])
  }

  @Test func `empty values and nulls before all others are those`() {
    let missing: Int? = nil
    let statement: SQL = "select \(""), \(missing), \(""), \("a"), \("")"
    #expect(statement.encoded == [[], nil, [], [UInt8(ascii: "a")], []])
  }

  @Test(arguments: [
    "host=h password=my s3cret", "host=h password='s3cret", "host=h s3cret=1", "host=h port=s3cret",
    "host=h port=70000",
    "postgres://u:p/s3cret@h/db", "postgres://u:s3cret/x@h/db", "postgres://u:12/s3cret@h/db",
    "postgres://u:p@s3cret@h",
    "postgres://u:s3cret%zz@h/db", "postgres://u:%00s3cret@h/db",
    "postgresql://h/db?s3cret",
    "postgres://h/db?password=a=s3cret", "postgres://h/db?s3cret=a", "postgres://[::1/s3cret", "postgres://[::1]s3cret",
  ])
  func `an address that cannot be right is refused, and no part of it is told`(_ address: String) throws {
    let error = try #require(#expect(throws: PostgresError.self) { _ = try PostgresPool(address) })
    #expect(error.kind == .cannotConnect && !"\(error)".contains("s3cret") && !error.message.contains("s3cret"))
    #expect("\(error)".contains("percent-encoded"))
  }

  @Test func `the description of an error is one line without values`() {
    var error = PostgresError(
      .server,
      "invalid input syntax for type integer: \"s3cret \"x\"\"",
      sqlState: .init(rawValue: "22P02")
    )
    (error.detail, error.hint, error.constraint) = ("Key (a)=(s3cret) exists.", "Try\nagain.", "c")
    (error.schema, error.table, error.statement) = ("s", "t", "select\n  $1")
    let expected =
      "server 22P02: invalid input syntax for type integer: \"…\"; hint: Try again.; table: s.t; constraint: c;"
    #expect("\(error)" == expected + " statement: select   $1")
    error.sqlState = .uniqueViolation
    error.message = "duplicate key value violates unique constraint \"c\""
    #expect("\(error)".contains("unique constraint \"c\"") && !"\(error)".contains("s3cret"))
  }

  @Test func `an identifier is quoted`() {
    let name = #"a"; drop table "b"#
    #expect(("select * from \(identifier: name)" as SQL).text == #"select * from "a""; drop table ""b""#)
    #expect(SQL.quoted("a\"\u{301}b").unicodeScalars.elementsEqual("\"a\"\"\u{301}b\"".unicodeScalars))
  }

  @Test func `nil is a null of its type, and a list is one array`() {
    let missing: Int32? = nil
    let statement: SQL = "select \(missing), \([1, 2] as [Int]), \([] as [String]), \([1, 2] as [UInt8])"
    #expect(statement.values.map(\.type) == [23, 1016, 1009, 17])
    #expect(statement.encoded[0] == nil)
    let elements: [UInt8] = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2]
    #expect(statement.encoded[1] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 2, 0, 0, 0, 1] + elements)
    #expect(statement.encoded[2]?.prefix(4) == [0, 0, 0, 0])
    #expect(statement.encoded[3] == [1, 2])
  }
}

/// A conformance with a mistake: it should append.
private struct Assigning: PostgresEncodable {
  let bytes: [UInt8]

  func encode(into target: inout [UInt8]) { target = bytes }
}

extension SQL {
  /// The bytes of each value; nil is null.
  fileprivate var encoded: [[UInt8]?] { values.map { bytes(of: $0).map { Array($0) } } }
}

/// What a value is after the way to the server's format and back.
func roundTrip<V: PostgresEncodable & PostgresDecodable>(_ value: V) throws -> V {
  let bytes = ("\(value)" as SQL).bytes
  return try bytes.withUnsafeBytes { try V(postgres: $0, type: V.postgresType, isText: false) }
}

@Suite(.timeLimit(.minutes(10)))
struct CodecTests {
  @Test func `a value of every type survives the way to the server's format and back`() throws {
    for number in [0, 1, -1, Int.min, .max] { #expect(try roundTrip(number) == number) }
    for number in [0, 1, -1, Int16.min, .max] { #expect(try roundTrip(number) == number) }
    for number in [0.0, -0.0, 1e300, .infinity, -.infinity, .leastNonzeroMagnitude] {
      #expect(try roundTrip(number) == number)
    }
    #expect(try roundTrip(Double.nan).isNaN)
    #expect(try roundTrip(Float.pi) == .pi)
    #expect(try roundTrip(true) && !roundTrip(false))
    #expect(try roundTrip("Ünïcödé\u{1F600}") == "Ünïcödé\u{1F600}")
    let bytes = (0..<1600).map { UInt8(truncatingIfNeeded: $0 * 7 + 128) }
    #expect(try roundTrip(bytes) == bytes)
    let identifier = UUID()
    #expect(try roundTrip(identifier) == identifier)
    #expect(try roundTrip(JSON(["a": [1, 2]])).value == ["a": [1, 2]])
  }

  @Test(arguments: [
    "0", "1", "-1", "10000", "9999.9999", "-0.0001", "0.00000001", "123456789012345678901234567890.12345678", "1.50",
    "100000000000000000000000000000000000000", "99999999999999999999999999999999999999", "-20000.00002",
  ])
  func `a decimal number survives exactly`(text: String) throws {
    let number = try #require(Decimal(string: text))
    #expect(try roundTrip(number) == number)
  }

  @Test func `a decimal that is no number stays none`() throws { #expect(try roundTrip(Decimal.nan).isNaN) }

  @Test func `a date survives to the microsecond, also before Christ`() throws {
    for seconds in [0, 1.000001, -1e9 + 0.25, -9e10, -2.1e11, 2.5e11] {
      let date = Date(timeIntervalSinceReferenceDate: seconds)
      #expect(abs(try roundTrip(date).timeIntervalSince(date)) < 1e-4)
    }
    for seconds in [1e300, -1e300, .infinity, .nan] {
      // Out of the server's range, and not its infinities.
      let bytes = ("\(Date(timeIntervalSinceReferenceDate: seconds))" as SQL).bytes
      #expect(bytes != ("\(Int64.max)" as SQL).bytes && bytes != ("\(Int64.min)" as SQL).bytes)
    }
  }

  @Test func `a number that does not fit is refused`() throws {
    func decode<V: PostgresDecodable>(_ value: some PostgresEncodable, as: V.Type) throws -> V {
      let statement: SQL = "\(value)"
      return try statement.bytes.withUnsafeBytes { try V(postgres: $0, type: statement.values[0].type, isText: false) }
    }
    #expect(throws: PostgresError.self) { try decode(70_000, as: Int16.self) }
    #expect(throws: PostgresError.self) { try decode(1.5, as: Int.self) }
    #expect(throws: PostgresError.self) { try decode(Double.nan, as: Int.self) }
    #expect(throws: PostgresError.self) { try decode(1e300, as: Float.self) }
    #expect(throws: PostgresError.self) { try decode(Int.max, as: Double.self) }
    #expect(throws: PostgresError.self) { try decode(Decimal(string: "0.5")!, as: Int.self) }
    #expect(throws: PostgresError.self) { try decode("12", as: Int.self) }
    #expect(throws: PostgresError.self) { try decode(12, as: String.self) }
    #expect(throws: PostgresError.self) { try decode([0xFF] as [UInt8], as: String.self) }
    #expect(throws: PostgresError.self) { try decode(1, as: Bool.self) }
    #expect(try decode(Decimal(1_000_000), as: Int.self) == 1_000_000)
    #expect(try decode(Int16(7), as: Int.self) == 7)
    #expect(try decode(3.0, as: Int32.self) == 3)
  }

  @Test func `a piece of a copy has a length of 32 bits, whatever the bytes are`() {
    for count in [0, 1, 1 << 20, (1 << 20) + 1, 5 << 20, (1 << 32) + 4] {
      var end = 0
      for piece in Wire.pieces(of: count) {
        #expect(piece.lowerBound == end && !piece.isEmpty && piece.count <= 1 << 20)
        end = piece.upperBound
      }
      #expect(end == count)
    }
  }

  @Test func `a name in camel case finds the column in snake case`() {
    #expect(RowDecoder.snakeCase("enqueuedAt") == "enqueued_at")
    for name in ["id", "a_b", "address2"] { #expect(RowDecoder.snakeCase(name) == name) }
    let names = [
      "customerID": "customer_id", "URLString": "url_string", "userURLString": "user_url_string", "aB": "a_b",
      "ID": "id", "sha256Sum": "sha256_sum",
    ]
    for (name, column) in names { #expect(RowDecoder.snakeCase(name) == column) }
  }
}
#endif
