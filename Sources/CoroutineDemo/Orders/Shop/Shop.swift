#if Demo
import Coroutine
import CoroutinePostgres
import CoroutineWork

/// What somebody orders.
struct Order: Sendable {
  static let items = ["book", "lamp", "chair", "kettle"]
  static let customers = (0..<20).map { "customer-\($0)" }

  var number: Int
  var customer: String { Self.customers[number % Self.customers.count] }
  var item: String { Self.items[number / 7 % Self.items.count] }
  var cents: Int { 500 + number % 100 * 25 }
}

/// The payload of a mail.
struct Welcome: Codable, Sendable { var order: Int }

/// The payload of a booking.
struct Booking: Codable, Sendable { var customer: String, cents: Int }

struct OutOfStock: Error {}
struct MailServerBusy: Error {}

/// The order service: an order, its mail and its booking in one transaction; workers; a report by one at a time.
struct Shop: Sendable {
  let db: PostgresPool
  let schema: String
  let mails: WorkQueue<Welcome>
  /// Bookings of one customer are made one at a time.
  let bookings: WorkQueue<Booking>

  init(on db: PostgresPool, schema: String) {
    (self.db, self.schema) = (db, schema)
    var options = WorkOptions()
    // A killed worker's jobs run again after a second. Kills count as attempts.
    options.lease = .seconds(1)
    options.poll = .milliseconds(200)
    options.attempts = 1_000
    options.backoff = { _ in .milliseconds(50) }
    mails = WorkQueue("mails", on: db, schema: schema, options: options)
    bookings = WorkQueue("bookings", on: db, schema: schema, options: options)
  }

  /// The order, its mail and its booking: all of them, or nothing.
  func place(_ order: Order) throws {
    try db.transaction(retries: 3) { t in
      let taken = try t.run(
        "update \(identifier: schema).stock set pieces = pieces - 1 where item = \(order.item) and pieces > 0"
      )
      if taken.affected == 0 { throw OutOfStock() }
      try t.run(
        """
        insert into \(identifier: schema).orders (id, customer, cents)
        values (\(order.number), \(order.customer), \(order.cents))
        """
      )
      try mails.enqueue(Welcome(order: order.number), in: t, unique: "\(order.number)")
      let booking = Booking(customer: order.customer, cents: -order.cents)
      try bookings.enqueue(booking, in: t, unique: "\(order.number)", key: order.customer)
    }
  }

  /// What a worker does, until it is cancelled.
  func work(as worker: String) throws {
    try co_scope { scope in
      scope.launch(name: "bookings") { try book() }
      scope.launch(name: "nightly") { try reportNightly(as: worker) }
      try mails.work(concurrency: 8) { job in
        // At least once: the receiver knows the key.
        try send(key: job.id)
        // Once.
        try job.finish { t in
          _ = try t.run(
            """
            insert into \(identifier: schema).mail (order_id, worker, fence)
            values (\(job.payload.order), \(worker), \(job.fence))
            """
          )
        }
      }
    }
  }

  /// Changes balances.
  ///
  /// No two handlers change one balance at the same time, because its customer is the key of their jobs.
  private func book() throws {
    try bookings.work(concurrency: 4) { job in
      try job.finish { t in
        let (customer, cents) = (job.payload.customer, job.payload.cents)
        let old = try t.first(
          "select cents from \(identifier: schema).balance where customer = \(customer)",
          as: Int.self
        )
        try t.run(
          """
          insert into \(identifier: schema).balance (customer, cents) values (\(customer), \((old ?? 0) + cents))
          on conflict (customer) do update set cents = excluded.cents
          """
        )
      }
    }
  }

  /// The name of the lease, which no other run has.
  var nightly: String { "nightly \(schema)" }

  /// One worker at a time writes the report; here the nights are short.
  private func reportNightly(as worker: String) throws {
    while true {
      do {
        try db.lease(nightly, ttl: .seconds(1)) { lease in
          while true {
            try lease.transaction { t in
              _ = try t.run(
                """
                insert into \(identifier: schema).report (worker, fence, orders, cents)
                select \(worker), \(lease.fence), count(*), coalesce(sum(cents), 0) from \(identifier: schema).orders
                """
              )
            }
            try co_delay(.milliseconds(200))
          }
        }
      } catch let error as PostgresError where error.kind == .leaseLost || error.kind == .lost {
        // Another worker holds it by now.
      }
    }
  }

  /// The mail server: elsewhere, slow, and busy now and then.
  ///
  /// It writes down which mails it was given, outside of any transaction of the job.
  private func send(key: Int64) throws {
    try co_delay(.milliseconds(Int64.random(in: 5...30)))
    if Int.random(in: 0..<50) == 0 { throw MailServerBusy() }
    try db.run("insert into \(identifier: schema).sent (job) values (\(key))")
  }
}
#endif
