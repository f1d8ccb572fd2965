import Coroutine
import CoroutinePostgres
import CoroutineWork
import Foundation

/// The tables of the shop, and its outbox.
///
/// An order, the piece that leaves the stock and the job of its mail are written in one transaction. So there is a mail
/// for each order, and none for an order that was rolled back, whenever a process or the server ends.
final class Shop: Sendable {
  let db: PostgresPool
  let mails: WorkQueue<Mail>

  /// Connects when the first statement runs; a statement waits for a connection for `patience` at most.
  init(_ database: String, patience: Duration = .seconds(3), options: WorkOptions = .init()) throws {
    var pool = PostgresPool.Options()
    pool.acquireTimeout = patience
    db = try PostgresPool(database, options: pool)
    mails = WorkQueue("mails", on: db, options: options)
  }

  private static let tables: [SQL] = [
    "create table if not exists stock (item text primary key, pieces int not null)",
    """
    create table if not exists orders
      (id text primary key, customer text not null, item text not null, cents int not null, mailed timestamptz)
    """,
  ]

  /// Makes the tables, if they are not there.
  func makeTables() throws {
    try Work.migrate(db)
    try db.transaction { t in
      // One instance at a time: two that make one table at once would get an error.
      try t.run("select pg_advisory_xact_lock(hashtext('shop'))")
      for table in Self.tables { try t.run(table) }
    }
  }

  /// Adds pieces of an item to the stock.
  func stock(_ item: String, _ pieces: Int) throws {
    try db.run(
      """
      insert into stock (item, pieces) values (\(item), \(pieces))
      on conflict (item) do update set pieces = stock.pieces + excluded.pieces
      """
    )
  }

  /// Why a transaction is rolled back.
  private struct SoldOutError: Error {}

  /// Places an order, once, however often it is called with it.
  func place(_ order: Order) throws -> Placed {
    do {
      return try db.transaction(retries: 3) { t in
        let added = try t.run(
          """
          insert into orders (id, customer, item, cents)
          values (\(order.id), \(order.customer), \(order.item), \(order.cents)) on conflict (id) do nothing
          """
        )
        guard added.affected == 1 else {
          let same: SQL = """
            select customer = \(order.customer) and item = \(order.item) and cents = \(order.cents)
            from orders where id = \(order.id)
            """
          return try t.first(same, as: Bool.self) == true ? .before : .other
        }
        let taken = try t.run("update stock set pieces = pieces - 1 where item = \(order.item) and pieces > 0")
        guard taken.affected == 1 else { throw SoldOutError() }
        try mails.enqueue(Mail(order: order.id, customer: order.customer), in: t, unique: order.id)
        return .new
      }
    } catch is SoldOutError {
      return .soldOut
    }
  }

  /// The order with this id.
  func order(_ id: String) throws -> OrderView? {
    // A text of PostgreSQL has no NUL.
    if id.contains("\0") { return nil }
    let found = try db.first(
      "select customer, item, cents, mailed from orders where id = \(id)",
      as: (String, String, Int, Date?).self
    )
    return found.map { customer, item, cents, mailed in
      OrderView(order: Order(id: id, customer: customer, item: item, cents: cents), mailed: mailed)
    }
  }

  /// Sends the mails of the outbox until the program stops.
  ///
  /// `deliver` is called at least once for each mail, and more often if a process ends in the middle: its receiver
  /// knows the key, and drops what it has had.
  func sendMails(_ deliver: @escaping @Sendable (_ mail: Mail, _ key: Int64) throws -> Void) throws {
    try mails.work { job in
      try deliver(job.payload, job.id)
      try job.finish { t in _ = try t.run("update orders set mailed = now() where id = \(job.payload.order)") }
    }
  }
}
