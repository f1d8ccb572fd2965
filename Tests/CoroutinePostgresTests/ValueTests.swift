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
