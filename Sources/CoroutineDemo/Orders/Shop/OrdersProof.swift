#if Demo
import CoroutinePostgres
import CoroutineWork

/// What the tables say in the end: whether effects are orders.
struct OrdersProof: Sendable, Equatable {
  /// How many orders were placed, and how many are in the table.
  var placed = 0
  var orders = 0
  /// Mails that are there, and the orders that have one.
  var mails = 0
  var mailedOrders = 0
  /// How often the mail server was given a mail, and how many different ones.
  var sent = 0
  var sentMails = 0
  var retries = 0
  /// Pieces that left the stock.
  var pieces = 0
  /// Customers whose balance is not the sum of their orders.
  var wrongBalances = 0
  /// How often the lease of the report was taken.
  var holders = 0
  /// Fences under which two workers have written, and reports whose fence is smaller than one before.
  var sharedFences = 0
  var lateReports = 0

  /// Whether every order has one mail and one booking, and the lease one holder at a time.
  var holds: Bool {
    orders == placed && mails == orders && mailedOrders == orders && sentMails == orders && pieces == orders
      && wrongBalances == 0 && sharedFences == 0 && lateReports == 0
  }

  func text(_ plan: OrdersPlan, _ duration: Duration) -> String {
    let missing = orders - mailedOrders
    let twice = mails - mailedOrders
    let remark =
      missing == 0 && twice == 0 ? "one for each order" : "\(missing.grouped) missing, \(twice.grouped) more than once"
    let lease = sharedFences + lateReports == 0 ? "one after the other" : "two at once"
    let rows = [
      ("orders", orders, "\(plan.workers) workers, \(plan.kills) kills, \(duration.readable)"),
      ("mails", mails, remark),
      ("sent", sent, "\((sent - sentMails).grouped) of them again, after a kill: the receiver knows the key"),
      ("retries", retries, "after kills, and when the mail server was busy"),
      ("pieces sold", pieces, ""),
      ("wrong balances", wrongBalances, "of \(Order.customers.count) customers"),
      ("nightly holders", holders, lease),
    ]
    let lines = rows.map { name, number, remark in
      let value = number.grouped
      let line = "  \(name)" + String(repeating: " ", count: max(1, 24 - name.count - value.count)) + value
      return remark.isEmpty ? line : line + "  \(remark)"
    }
    let verdict = holds ? "Proven: effects = orders." : "Not proven: effects are not orders."
    return (lines + [verdict]).joined(separator: "\n") + "\n"
  }
}

extension Shop {
  /// Counts, when nothing is left to be done.
  func prove(_ plan: OrdersPlan) throws -> OrdersProof {
    let shop: SQL = "\(identifier: schema)"
    var proof = OrdersProof(placed: plan.orders)
    let counts = try db.first(
      """
      select (select count(*) from \(shop).orders), (select count(*) from \(shop).mail),
        (select count(distinct order_id) from \(shop).mail), (select count(*) from \(shop).sent),
        (select count(distinct job) from \(shop).sent)
      """,
      as: (Int, Int, Int, Int, Int).self
    )
    if let counts { (proof.orders, proof.mails, proof.mailedOrders, proof.sent, proof.sentMails) = counts }
    proof.retries = try numbers().retries
    let left = try db.first("select sum(pieces) from \(shop).stock", as: Int.self) ?? 0
    proof.pieces = plan.orders * Order.items.count - left
    var owed = Dictionary(uniqueKeysWithValues: Order.customers.map { ($0, 0) })
    let sums: SQL = "select customer, sum(cents) from \(shop).orders group by customer"
    for (customer, cents) in try db.all(sums, as: (String, Int).self) { owed[customer] = cents }
    var balances: [String: Int] = [:]
    let booked: SQL = "select customer, cents from \(shop).balance"
    for (customer, cents) in try db.all(booked, as: (String, Int).self) { balances[customer] = cents }
    for (customer, cents) in owed where balances[customer, default: 0] != -cents { proof.wrongBalances += 1 }
    let lease = try db.first(
      """
      select count(distinct fence), count(distinct (worker, fence)) - count(distinct fence), count(*) filter (where late)
      from (select worker, fence, fence < lag(fence) over (order by n) as late from \(shop).report) as r
      """,
      as: (Int, Int, Int).self
    )
    if let lease { (proof.holders, proof.sharedFences, proof.lateReports) = lease }
    return proof
  }
}
#endif
