#if Demo
import Coroutine

/// Shows how far the orders are, and who holds the lease.
///
/// On a terminal it redraws a board. Elsewhere it writes a line for each tenth, and for each new holder.
struct OrdersDisplay: Sendable {
  private static let frame = Duration.milliseconds(150)
  private let output: Output
  private let plan: OrdersPlan
  private let shop: Shop
  private let crew: Crew

  init(_ output: Output, _ plan: OrdersPlan, _ shop: Shop, _ crew: Crew) {
    (self.output, self.plan, self.shop, self.crew) = (output, plan, shop, crew)
  }

  /// Suspends until it is cancelled, and shows the last state then.
  func run() throws {
    let isLive = output.display != .text
    var board = OrdersBoard(plan: plan)
    var told: (stage: Int, holder: String) = (-1, "")
    var isDrawn = false
    if isLive { output.note("\u{1B}[?25l") }
    defer { if isLive { output.note("\u{1B}[?25h") } }
    while true {
      let isOver = (try? co_delay(Self.frame)) == nil
      board.kills = crew.kills
      board.processes = crew.processes
      // What cannot be read now is read at the next frame; a database that stays away ends the orders.
      let numbers = try? co_shield { try co_timeout(.seconds(2)) { try shop.numbers() } }
      board.numbers = numbers ?? board.numbers
      let stage = 10 * board.numbers.orders / plan.orders
      if isLive {
        let lines = board.lines(columns: output.size.columns - 1)
        let up = isDrawn ? "\u{1B}[\(lines.count)A" : ""
        // Clears below too: a Ctrl-C leaves its ^C there.
        try write(up + lines.map { "\r\u{1B}[2K\($0)\n" }.joined() + "\u{1B}[J")
        isDrawn = true
      } else if stage != told.stage || board.holder != told.holder || isOver {
        try write(board.line + "\n")
      }
      told = (stage, board.holder)
      if isOver { return }
    }
  }

  /// A terminal may be stopped, a pipe full: that must not hold up the orders.
  private func write(_ text: String) throws {
    try co_shield { try co_blocking { [output] in output.note(text) } }
  }
}
#endif
