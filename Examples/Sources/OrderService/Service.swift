import Coroutine
import CoroutineHTTP
import CoroutineNet
import CoroutinePostgres
import Foundation
import HTTPTypes

/// The web service: what each address answers.
///
/// | address | answer |
/// |---|---|
/// | `POST /orders` | 201 for a new order, 200 for one that was placed before, 409 if it cannot be placed |
/// | `GET /orders/ID` | the order, and when its mail was sent, as JSON |
/// | `GET /health` | the page of the queue's health, for people |
/// | `GET /health.json` | the same for tools: 503 if a mail that is due waits for more than a minute |
///
/// Any number of processes may serve at one database: each takes orders, and sends mails of the outbox.
final class Service: Sendable {
  let shop: Shop
  private let deliver: @Sendable (Mail, Int64) throws -> Void

  init(_ shop: Shop, deliver: @escaping @Sendable (_ mail: Mail, _ key: Int64) throws -> Void) {
    self.shop = shop
    self.deliver = deliver
  }

  /// Serves and sends mails until it is told to stop, or cancelled.
  func run(_ address: SocketAddress, onListening: ((SocketAddress) -> Void)? = nil) throws {
    try shop.makeTables()
    try co_scope { scope in
      // Told to stop it claims no more, and those that it has are sent.
      scope.launch(name: "outbox") { try self.shop.sendMails(self.deliver) }
      try HTTPServer.run(address, onListening: onListening) { request, response in
        do {
          try self.answer(request, &response)
        } catch let error as PostgresError where error.isOfTheServer {
          // Also where it is not known whether the order was placed: it may be sent again.
          response.fields[.retryAfter] = "1"
          response.status = .serviceUnavailable
          try response.send("The database is away: \(error.message). Try again.\n")
        }
      }
    }
  }

  private func answer(_ request: borrowing ServerRequest, _ response: inout ServerResponse) throws {
    let path = request.path
    switch (request.method, path) {
    case (.post, "/orders"): try place(Self.order(request.collect(upTo: 65_536)), &response)
    case (.get, _) where path.hasPrefix("/orders/"):
      let id = String(path.dropFirst("/orders/".count)).removingPercentEncoding ?? ""
      guard let view = try shop.order(id) else { throw HTTPStatusError(.notFound, "There is no such order.\n") }
      try send(view, &response)
    case (.get, "/health"):
      try response.send(HealthPage.html(Health(shop)), type: "text/html; charset=utf-8")
    case (.get, "/health.json"):
      let health = try Health(shop)
      if !health.isGood { response.status = .serviceUnavailable }
      try send(health, &response)
    case (_, "/orders"), (_, "/health"), (_, "/health.json"): throw HTTPStatusError(.methodNotAllowed)
    default: throw HTTPStatusError(.notFound)
    }
  }

  private func place(_ order: Order, _ response: inout ServerResponse) throws {
    switch try shop.place(order) {
    case .new: response.status = .created
    case .before: response.status = .ok
    case .other: throw HTTPStatusError(.conflict, "There is another order \(order.id).\n")
    case .soldOut: throw HTTPStatusError(.conflict, "\(order.item) is sold out.\n")
    }
    let id = order.id.addingPercentEncoding(withAllowedCharacters: .alphanumerics) ?? ""
    response.fields[.location] = "/orders/\(id)"
    try send(order, &response)
  }

  private static func order(_ body: [UInt8]) throws -> Order {
    let order: Order
    do { order = try JSONDecoder().decode(Order.self, from: Data(body)) } catch {
      let example = #"{"id":"7","customer":"ada","item":"book","cents":1250}"#
      throw HTTPStatusError(.badRequest, "The body is no order, as this is one: \(example)\n")
    }
    if let fault = order.fault { throw HTTPStatusError(.badRequest, "The order cannot be placed: \(fault).\n") }
    return order
  }

  private func send(_ value: some Encodable, _ response: inout ServerResponse) throws {
    let encoder = JSONEncoder()
    encoder.dateEncodingStrategy = .iso8601
    encoder.outputFormatting = [.sortedKeys]
    try response.send(encoder.encode(value), type: "application/json")
  }
}

extension PostgresError {
  /// Whether the server, or the way to it, is the reason, and not the statement.
  var isOfTheServer: Bool { [.lost, .cannotConnect, .commitUnknown].contains(kind) }
}
