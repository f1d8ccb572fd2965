#if Demo
import CoroutinePostgres
import CoroutineWork

/// A moment's counts.
struct OrdersNumbers: Sendable, Equatable {
  var orders = 0
  var mails = 0
  var retries = 0
  /// The worker that holds the lease of the nightly report, and its fence.
  var holder: String?
  var fence: Int64?
}

extension Shop {
  /// Makes the tables of the shop and of its jobs in a schema of their own, and those of leases in the schema `work`.
  func makeTables(stock: Int) throws {
    try Work.migrate(db)
    try Work.migrate(db, schema: schema)
    try db.transaction { t in
      // No unique key on what workers write: a second effect is seen, not refused.
      for table in [
        "stock (item text primary key, pieces int not null)",
        "orders (id int primary key, customer text not null, cents int not null)",
        "mail (order_id int not null, worker text not null, fence bigint not null)",
        "sent (job bigint not null)",
        "balance (customer text primary key, cents int not null)",
        "report (n bigserial, worker text not null, fence bigint not null, orders bigint, cents bigint)",
      ] { try t.run("create table \(identifier: schema).\(SQL(unchecked: table))") }
      for item in Order.items { try t.run("insert into \(identifier: schema).stock values (\(item), \(stock))") }
    }
  }

  /// Removes what `makeTables` has made, but the tables of leases, which other programs may use.
  func dropTables() throws {
    try db.run("drop schema \(identifier: schema) cascade")
    try db.run("delete from work.lease where name = \(nightly)")
  }

  /// Whether no mail and no booking is left to be done.
  func isDone() throws -> Bool {
    let jobs: SQL = """
      select count(*) from \(identifier: schema).job where state not in ('completed', 'discarded', 'cancelled')
      """
    return try db.first(jobs, as: Int.self) == 0
  }

  func numbers() throws -> OrdersNumbers {
    let found = try db.first(
      """
      select (select count(*) from \(identifier: schema).orders),
        (select count(distinct order_id) from \(identifier: schema).mail),
        (select coalesce(sum(attempt - 1), 0) from \(identifier: schema).job where queue = 'mails' and attempt > 0),
        (select worker from \(identifier: schema).report r where r.fence = lease.fence limit 1), lease.fence
      from (values (1)) as one left join work.lease on lease.name = \(nightly) and lease.ends > now()
      """,
      as: (Int, Int, Int, String?, Int64?).self
    )
    guard let (orders, mails, retries, holder, fence) = found else { return OrdersNumbers() }
    return OrdersNumbers(orders: orders, mails: mails, retries: retries, holder: holder, fence: fence)
  }
}
#endif
