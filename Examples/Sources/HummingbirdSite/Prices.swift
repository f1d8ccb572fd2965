/// Prices, behind an async interface, as a database or another service has it.
actor Prices {
  struct Unknown: Error { let name: String }

  private let prices: [String: Int]

  init(_ prices: [String: Int]) { self.prices = prices }

  func price(of name: String) async throws -> String {
    guard let price = prices[name] else { throw Unknown(name: name) }
    return "\(price / 100).\(price % 100 / 10)\(price % 10)"
  }
}
