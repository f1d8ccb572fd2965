#if Demo
/// What the display of `orders` knows, and how it looks: a value, without a terminal or a clock.
struct OrdersBoard: Sendable, Equatable {
  private static let barWidth = 30
  let plan: OrdersPlan
  var numbers = OrdersNumbers()
  var kills = 0
  var processes: [Int32] = []

  static func == (a: Self, b: Self) -> Bool {
    a.numbers == b.numbers && a.kills == b.kills && a.processes == b.processes
  }

  /// The lines for a terminal, none longer than `columns`.
  func lines(columns: Int) -> [String] {
    let workers = processes.enumerated().map { "\($0.offset + 1): \($0.element)" }.joined(separator: "  ")
    return [
      "  orders   \(bar(numbers.orders))  \(numbers.orders.grouped) of \(plan.orders.grouped)",
      "  mails    \(bar(numbers.mails))  \(numbers.mails.grouped)",
      "  retries  \(numbers.retries.grouped)",
      "  kills    \(kills) of \(plan.kills)",
      "  workers  \(workers)",
      "  nightly  \(holder)",
    ].map { $0.cut(to: max(1, columns)) }
  }

  /// One line for an output that is no terminal.
  var line: String {
    "\(numbers.orders.grouped) of \(plan.orders.grouped) orders, \(numbers.mails.grouped) mails, "
      + "\(numbers.retries.grouped) retries, \(kills) kills, nightly: \(holder)"
  }

  /// Who holds the lease of the nightly report.
  var holder: String {
    guard let fence = numbers.fence else { return "nobody" }
    return "\(numbers.holder ?? "just taken") (fence \(fence))"
  }

  private func bar(_ count: Int) -> String {
    let full = min(Self.barWidth, Self.barWidth * count / max(1, plan.orders))
    return String(repeating: "━", count: full) + String(repeating: "─", count: Self.barWidth - full)
  }
}
#endif
