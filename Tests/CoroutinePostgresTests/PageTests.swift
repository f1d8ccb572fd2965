#if Postgres
import Coroutine
import CoroutinePostgres
import Testing

// The code of the article ADatabaseInStraightLine.md.

struct OutOfStock: Error {}

func place(_ item: String, customer: String, in db: PostgresPool) throws -> Int {
  try db.transaction(retries: 3) { t in
    let taken = try t.run("update stock set left_over = left_over - 1 where item = \(item) and left_over > 0")
    if taken.affected == 0 { throw OutOfStock() }
    let id = try t.first("insert into orders (item, customer) values (\(item), \(customer)) returning id", as: Int.self)
    try t.notify("orders", item)
    return id!
  }
}

struct Order: Decodable {
  var id: Int
  var item: String
  var customerName: String?
}

func list(_ db: PostgresPool, of customer: String?) throws -> [Order] {
  let filter: SQL = if let customer { "customer = \(customer)" } else { "true" }
  return try db.all(
    "select id, item, customer as customer_name from orders where \(filter) order by id",
    as: Order.self
  )
}

func export(_ db: PostgresPool, _ write: ([UInt8]) throws -> Void) throws {
  try db.transaction(.repeatableRead, readOnly: true) { t in
    try t.forEach("select id, item from orders order by id") { row in
      let (id, item) = try row.decode((Int, String).self)
      try write(Array("\(id),\(item)\n".utf8))
    }
  }
}

func follow(_ db: PostgresPool, _ look: () throws -> Void) throws {
  try db.listen("orders").forEach { _ in try look() }
}

@Suite(.timeLimit(.minutes(10)))
struct PageTests {
  @Test func `the code of the page works`() async throws {
    try await withPool { db in
      try db.run("create table stock (item text primary key, left_over int)")
      try db.run("create table orders (id bigint generated always as identity, item text, customer text)")
      try db.run("insert into stock values ('book', 2)")
      try co_scope { scope in
        let looks = FairSemaphore(0, limit: .unbounded)
        let follower = scope.launch { try follow(db) { looks.release() } }
        try looks.acquire()
        #expect(try place("book", customer: "Ann", in: db) == 1)
        try looks.acquire()
        follower.cancel()
        _ = try? follower.join()
      }
      #expect(try place("book", customer: "Bob", in: db) == 2)
      #expect(throws: OutOfStock.self) { _ = try place("book", customer: "Bob", in: db) }
      #expect(try list(db, of: nil).map(\.customerName) == ["Ann", "Bob"])
      #expect(try list(db, of: "Bob").map(\.id) == [2])
      var lines: [UInt8] = []
      try export(db) { lines += $0 }
      #expect(String(decoding: lines, as: UTF8.self) == "1,book\n2,book\n")
    }
  }
}
#endif
