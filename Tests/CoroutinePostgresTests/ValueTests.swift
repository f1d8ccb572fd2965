#if Postgres
import Coroutine
import CoroutinePostgres
import FoundationEssentials
import Testing

private enum Mood: String, PostgresEncodable, PostgresDecodable, Codable { case happy, sad }
private struct Person: Decodable, Equatable {
  var id: Int
  var fullName: String
  var age: Int?
  var mood: Mood
  var tags: [String: Int]
}

private struct Lists: Decodable, Equatable {
  var names: [String]
  var tags: [String]
  var more: [Int]?
  var bytes: [UInt8]
  var small: UInt16?
  var big: UInt
}

@Suite(.timeLimit(.minutes(10)))
struct ValueTests {
  @Test func `values of all types come back from the server as they were`() async throws {
    try await withPool { db in
      let bytes = (0..<1600).map { UInt8(truncatingIfNeeded: $0 * 7 + 128) }
      let identifier = UUID()
      let date = Date(timeIntervalSinceReferenceDate: 700_000_000.123456)
      let row = try #require(
        try db.run(
          """
          select \(Int16.min), \(Int32.max), \(Int.min), \(true), \(Float.infinity), \(-Double.infinity), \("Grüße 😀"),
          \(bytes), \(identifier), \(date), \(Decimal(string: "-12345678901234567890.0001")!), \(JSON(["a": [1.5]]))
          """
        ).first
      )
      let value = try row.decode(
        (
          Int16, Int32, Int, Bool, Float, Double, String, [UInt8], UUID, Date, Decimal, JSON<[String: [Double]]>
        ).self
      )
      #expect((value.0, value.1, value.2, value.3) == (.min, .max, .min, true))
      #expect((value.4, value.5, value.6) == (.infinity, -.infinity, "Grüße 😀"))
      #expect((value.7, value.8, value.10) == (bytes, identifier, Decimal(string: "-12345678901234567890.0001")!))
      #expect(abs(value.9.timeIntervalSince(date)) < 1e-5)
      #expect(value.11.value == ["a": [1.5]])
      #expect(try db.first("select \(Double.nan)", as: Double.self)?.isNaN == true)
      #expect(try db.first("select 'NaN'::numeric", as: Decimal.self)?.isNaN == true)
    }
  }

  @Test func `the server and the client spell values alike`() async throws {
    try await withPool { db in
      for text in ["0", "-0.0001", "10000", "123456789.123456789", "99999999999999999999.9"] {
        let number = Decimal(string: text)!
        #expect(try db.first("select (\(number)::text::numeric = \(text)::numeric)", as: Bool.self) == true)
        #expect(try db.first("select \(text)::numeric", as: Decimal.self) == number)
      }
      let old = try #require(try db.first("select timestamptz '0044-03-15 12:00:00+00 BC'", as: Date.self))
      #expect(try db.first("select \(old) = timestamptz '0044-03-15 12:00:00+00 BC'", as: Bool.self) == true)
      #expect(try db.first("select date '2001-01-02'", as: Date.self)?.timeIntervalSinceReferenceDate == 86_400)
    }
  }

  @Test func `single columns, several columns, structures and lists decode`() async throws {
    try await withPool { db in
      #expect(try db.all("select * from generate_series(1, 3)", as: Int.self) == [1, 2, 3])
      #expect(try db.all("select 'a' where false", as: String.self).isEmpty)
      #expect(try db.first("select 1 where false", as: Int.self) == nil)
      for (number, text) in try db.all("select 7, null::text", as: (Int, String?).self) {
        #expect(number == 7 && text == nil)
      }
      let query: SQL = """
        select 1 as id, 'Ann Lee' as full_name, null::int as age, 'sad' as mood, '{"x": 1}'::jsonb as tags
        """
      let expected = Person(id: 1, fullName: "Ann Lee", age: nil, mood: .sad, tags: ["x": 1])
      #expect(try db.first(query, as: Person.self) == expected)
      #expect(try db.all(query, as: Person.self) == [expected])
      #expect(try db.run(query)[0].get("full_name") == "Ann Lee")
      #expect(try db.run(query).columns == ["id", "full_name", "age", "mood", "tags"])
      #expect(try db.all("select n from generate_series(1, 9) n where n = any(\([2, 5]))", as: Int.self) == [2, 5])
      #expect(try db.first("select \(["a", "b\"{}"])::text[] = array['a', 'b\"{}']", as: Bool.self) == true)
      #expect(try db.first("select cardinality(\([UUID(), UUID()]))", as: Int.self) == 2)
    }
  }

  @Test func `no error tells a value in its description`() async throws {
    struct Row: Decodable { var a: [String: Int] }
    try await withPool { db in
      try db.withTable("a text primary key") { table in
        let secret = "s3cret"
        try db.run("insert into \(table) values (\(secret))")
        let bodies: [() throws -> Void] = [
          { try db.run("insert into \(table) values (\(secret))") }, { try db.run("select \(secret)::int") },
          { try db.run("select \(secret)::date") }, { try db.run("select \(secret)::json") },
          { _ = try db.first("select \(secret)", as: Int.self) },
          { _ = try db.first("select \(secret)", as: Mood.self) },
          { _ = try db.first("select to_jsonb(\(secret))", as: JSON<Int>.self) },
          { _ = try db.first("select to_jsonb(\(secret)) as a", as: Row.self) },
        ]
        for (number, body) in bodies.enumerated() {
          let error = try #require(#expect(throws: PostgresError.self) { try body() })
          #expect(!"\(error)".contains(secret) && !"\(error)".contains("\n"), "\(number): \(error)")
        }
      }
    }
  }

  @Test func `what JSON cannot say is refused, and the error has no value`() async throws {
    struct Own: Error { let value: String }
    struct Secret: Codable, Sendable {
      var error: EncodingError?
      func encode(to encoder: any Encoder) throws {
        guard let error else { throw Own(value: "s3cret") }
        throw error
      }
      init(_ error: EncodingError?) { self.error = error }
      init(from decoder: any Decoder) throws {}
    }
    let context = EncodingError.Context(codingPath: [], debugDescription: "s3cret")
    try await withPool { db in
      let bodies: [(String, () throws -> Void)] = [
        ("", { try db.run("select \(JSON(Double.nan))") }),
        ("at a", { try db.run("select \(JSON(["a": -Double.infinity]))") }),
        ("", { try db.run("select \(JSON(["s3cret\0"]))") }),
        ("", { try db.run("select \(JSON(["\\\0": "s3cret"]))") }),
        ("", { try db.run("select \(JSON(Secret(.invalidValue("s3cret", context))))") }),
        ("", { try db.run("select \(JSON(Secret(nil)))") }),
      ]
      for (number, (place, body)) in bodies.enumerated() {
        let error = try #require(#expect(throws: PostgresError.self) { try body() })
        #expect(error.kind == .decoding && (place.isEmpty || "\(error)".contains(place)), "\(number): \(error)")
        for value in ["s3cret", "nan", "-inf"] { #expect(!"\(error)".contains(value), "\(number): \(error)") }
      }
      // No zero byte, but what one is written by, behind a backslash.
      for text in ["\\u0000", "\\\\u0000", "u0000", "\\", "\u{1}\\"] {
        #expect(try db.first("select \(JSON([text]))", as: JSON<[String]>.self)?.value == [text])
      }
    }
  }

  @Test func `arrays come back as they were, with nulls`() async throws {
    try await withPool { db in
      let numbers = try db.first("select \([1, 2])", as: [Int].self)
      #expect(numbers == [1, 2])
      #expect(try db.first("select \([1, nil, 3])", as: [Int?].self) == [1, nil, 3])
      #expect(try db.first("select array_position(\(["a", nil, "b"]), null)", as: Int.self) == 2)
      #expect(try db.first("select \([] as [String])", as: [String].self) == [])
      let missing: [Int]? = nil
      #expect(try db.first("select \(missing)", as: [Int]?.self) == .some(nil))
      #expect(try db.first("select array[1::smallint, 2]", as: [UInt8].self) == [1, 2])
      #expect(try db.first("select \([[1, 2], [3]] as [[UInt8]])::bytea[]", as: [[UInt8]].self) == [[1, 2], [3]])
      let dates = [Date(timeIntervalSinceReferenceDate: 1), Date(timeIntervalSinceReferenceDate: 2.5)]
      #expect(try db.first("select \(dates)", as: [Date].self) == dates)
      let lengths: [Duration] = [.seconds(1), .milliseconds(5)]
      #expect(try db.first("select \(lengths)", as: [Duration].self) == lengths)
      #expect(try db.first("select array['happy', 'sad']", as: [Mood].self) == [.happy, .sad])
      #expect(try db.first("select \([JSON(1)])", as: [JSON<Int>].self)?.first?.value == 1)
      for wrong: SQL in ["select array[1, null]", "select array[array[1]]", "select 1", "select 'a'"] {
        #expect(kind { _ = try db.first(wrong, as: [Int].self) } == .decoding, "\(wrong)")
      }
      let lists: SQL =
        #"select array['a'] as names, '["b"]'::jsonb as tags, null::int[] as more, '\x01'::bytea as bytes, 7 as small, 8 as big"#
      #expect(
        try db.first(lists, as: Lists.self) == Lists(names: ["a"], tags: ["b"], more: nil, bytes: [1], small: 7, big: 8)
      )
      #expect(db.statistics.opened == 1)
    }
  }

  @Test func `a Duration is an interval, and the casts of the page are right`() async throws {
    try await withPool { db in
      for length: Duration in [.zero, .seconds(-1.5), .microseconds(7), .seconds(86_400 * 400), .nanoseconds(1_500)] {
        let back = try #require(try db.first("select \(length)", as: Duration.self))
        #expect(back - length <= .nanoseconds(500) && length - back <= .nanoseconds(500))
      }
      #expect(try db.first("select interval '1 day 2 hours'", as: Duration.self) == .seconds(93_600))
      let month: SQL = "select timestamptz '2026-01-31 00:00Z' - timestamptz '2026-01-01 00:00Z'"
      #expect(try db.first(month, as: Duration.self) == .seconds(30 * 86_400))
      #expect(kind { _ = try db.first("select interval '1 month'", as: Duration.self) } == .decoding)
      #expect(kind { _ = try db.first("select \(Duration.seconds(Int64.max))", as: Duration.self) } == .decoding)
      let days = 30
      for same: SQL in [
        "select \(Duration.seconds(days * 86_400)) = interval '30 days'", "select left('abc', \(Int32(2))) = 'ab'",
        "select \(days) * interval '1 day' = interval '30 days'", "select left('abc', \(2)::int) = 'ab'",
        "select make_interval(days => \(Int32(days))) = interval '30 days'",
        "select date '2026-01-01' + \(Int32(days)) = date '2026-01-31'", "select 'love' like '%' || \("ov") || '%'",
      ] {
        #expect(try db.first(same, as: Bool.self) == true, "\(same)")
      }
    }
  }

  @Test func `dates without a zone are those of UTC, whatever the zone of the server is`() async throws {
    try await withPool { db in
      let role = uniqueName("role")
      try db.run("create role \(identifier: role) superuser login")
      defer { _ = try? db.run("drop role \(identifier: role)") }
      try db.run("alter role \(identifier: role) set timezone = 'America/New_York'")
      let (folder, port) = try (Cluster.shared.get().folder, Cluster.shared.get().port)
      let far = try PostgresPool("host=\(folder) port=\(port) user=\(role) dbname=postgres")
      defer { try? far.close() }
      let date = Date(timeIntervalSinceReferenceDate: 790_000_000)
      for session in [far as any PostgresSession, far.pipeline] {
        let back = try session.first("select \(date)::timestamp, \(date)::timestamp::text", as: (Date, String).self)
        #expect(back?.0 == date && back?.1 == "2026-01-13 12:26:40", "\(String(describing: back))")
      }
      try far.withConnection { connection in
        try connection.run("set timezone = 'America/New_York'")
        #expect(kind { _ = try connection.first("select \(date)::timestamp", as: Date.self) } == .decoding)
        #expect(try connection.first("select \(date)", as: Date.self) == date)
      }
      // A transaction may have a zone of its own, which ends with it.
      try far.transaction { t in
        try t.run("set local timezone = 'America/New_York'")
        #expect(kind { _ = try t.first("select \(date)::timestamp", as: Date.self) } == .decoding)
      }
      #expect(try far.first("select \(date)::timestamp", as: Date.self) == date)
    }
  }

  @Test func `a type that an extension has added is no text by chance`() async throws {
    try await withPool { db in
      let name = uniqueName("mood")
      try db.run("create type \(identifier: name) as enum ('happy')")
      #expect(try db.first("select 'happy'::\(identifier: name)", as: String.self) == "happy")
      let known: SQL = "select count(*) from pg_available_extensions where name = 'ltree'"
      guard try db.first(known, as: Int.self) == 1 else { return }
      try db.run("create extension if not exists ltree")
      #expect(kind { _ = try db.first("select 'a.b'::ltree", as: String.self) } == .decoding)
      #expect(try db.first("select 'a.b'::ltree::text", as: String.self) == "a.b")
    }
  }

  @Test func `a column that is not there is an error for an Optional too`() async throws {
    struct Customer: Decodable {
      var customerID: Int?
      var nick: String?
    }
    try await withPool { db in
      let found = try db.first("select 7 as customer_id, null::text as nick", as: Customer.self)
      #expect(found?.customerID == 7 && found?.nick == nil)
      #expect(kind { _ = try db.first("select 7 as customer_id, 'x' as nik", as: Customer.self) } == .decoding)
      #expect(kind { _ = try db.first("select 'x' as nick", as: Customer.self) } == .decoding)
    }
  }

  @Test func `a value that does not fit is refused, and the connection lives`() async throws {
    try await withPool { db in
      #expect(kind { _ = try db.first("select null::int", as: Int.self) } == .decoding)
      #expect(kind { _ = try db.first("select 1.5", as: Int.self) } == .decoding)
      #expect(kind { _ = try db.first("select 70000", as: Int16.self) } == .decoding)
      #expect(kind { _ = try db.first("select 'NaN'::float8", as: Int.self) } == .decoding)
      #expect(kind { _ = try db.first("select 'infinity'::timestamptz", as: Date.self) } == .decoding)
      #expect(kind { _ = try db.first("select point '(1,2)'", as: String.self) } == .decoding)
      #expect(kind { _ = try db.first("select point '(1,2)'", as: Int.self) } == .decoding)
      #expect(kind { _ = try db.first("select 1", as: (Int, Int).self) } == .decoding)
      #expect(kind { _ = try db.run("select 1 as a")[0].get("b", as: Int.self) } == .decoding)
      #expect(kind { _ = try db.first("select 1 as id", as: Person.self) } == .decoding)
      #expect(kind { _ = try db.first("select 'angry'", as: Mood.self) } == .decoding)
      #expect(kind { try db.run("select \(JSON(Double.nan))") } == .decoding)
      let sum = try db.first("select sum(n) from generate_series(1, 10::bigint) n", as: Int.self)
      #expect(sum == 55)
      #expect(db.statistics.opened == 1)
    }
  }

  @Test func `bytes that are no text, and texts with a zero byte, are the server's errors`() async throws {
    try await withPool { db in
      let bytes = [UInt8](repeating: 0xFF, count: 1600)
      let same = try db.first("select \(bytes)", as: [UInt8].self)
      #expect(same == bytes)
      #expect(state { try db.run("select convert_from(\(bytes), 'UTF8')") } == "22021")
      #expect(state { try db.run("select \("a\0b")") } == "22021")
      #expect(state { try db.run("select \(Date(timeIntervalSinceReferenceDate: 1e300))") } == "22008")
      #expect(try db.first("select \("")", as: String.self) == "")
      #expect(db.statistics.opened == 1)
    }
  }

  @Test func `no interpolation becomes SQL`() async throws {
    try await withPool { db in
      try db.withTable("name text, mood text, \"a\"\"b\" int") { table in
        let attacks = [
          "'); drop table \(table); --", "\\'; select 1; --", "$1", "$$", "\u{2019} or 1=1", "a' or 'a'='a", "\"; --",
        ]
        for attack in attacks {
          try db.run("insert into \(table) (name) values (\(attack))")
          #expect(try db.first("select name from \(table) where name = \(attack)", as: String.self) == attack)
          #expect(try db.all("select name from \(table) where name = any(\([attack]))", as: String.self) == [attack])
          #expect(try db.first("select \(JSON([attack]))", as: JSON<[String]>.self)?.value == [attack])
          let part: SQL = "name = \(attack) and \(1) = 1"
          #expect(try db.all("select name from \(table) where \(part)", as: String.self).count == 1)
          // No such column, and nothing else has happened.
          #expect(state { try db.run("select \(identifier: attack) from \(table)") } == "42703")
        }
        #expect(try db.first("select count(*) from \(table)", as: Int.self) == attacks.count)
        try db.run("update \(table) set \(identifier: "a\"b") = 1")
        #expect(state { try db.run(SQL(unchecked: "select 1; select 2")) } == "42601")
      }
    }
  }
}
#endif
