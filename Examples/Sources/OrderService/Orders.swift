import CoroutinePostgres
import Foundation

/// An order, as `POST /orders` takes it.
struct Order: Codable, Equatable, Sendable {
  /// Chosen by the client: the same order, sent again, is one order.
  var id: String
  var customer: String
  var item: String
  var cents: Int

  /// What is wrong with the order; nil if nothing is.
  var fault: String? {
    if id.isEmpty || id.utf8.count > 64 { return "id has 1 to 64 bytes" }
    if customer.isEmpty { return "customer is empty" }
    if [id, customer, item].contains(where: { $0.contains("\0") }) { return "a text has a NUL" }
    if cents <= 0 { return "cents is not above zero" }
    return nil
  }
}

/// An order, as `GET /orders/ID` shows it.
struct OrderView: Codable, Equatable, Sendable {
  var order: Order
  /// When its mail was sent; nil as long as it was not.
  var mailed: Date?
}

/// The mail that confirms an order: a job of the outbox.
struct Mail: Codable, Sendable {
  var order: String
  var customer: String
}

/// What became of an order that was sent.
enum Placed: Equatable, Sendable {
  case new
  /// The same order was placed before.
  case before
  /// An order of the same id was placed before, and is another one.
  case other
  case soldOut
}
