#if Demo
import Coroutine
import Synchronization

/// Shows how far a load is: a bar that is redrawn on a terminal, a line for each tenth elsewhere.
struct LoadDisplay: Sendable {
  private static let frame = Duration.milliseconds(100)
  private static let barWidth = 30
  let output: Output
  let plan: LoadPlan
  let counters: LoadCounters

  /// Suspends until it is cancelled, and shows the last state then.
  func run() throws {
    let total = plan.deliveries
    let isLive = output.display != .text
    if isLive { output.note("\u{1B}[?25l") }
    defer { if isLive { output.note("\u{1B}[?25h\n") } }
    // Nothing, that the clients connect, and then each tenth.
    var told = -1
    while true {
      // In the end once more, so that the bar is full.
      let isOver = (try? co_delay(Self.frame)) == nil
      let delivered = counters.delivered.load(ordering: .relaxed)
      let stage = delivered == 0 ? 0 : 1 + 10 * delivered / max(1, total)
      let text = Self.text(connected, of: plan.clients, retries, delivered, of: total, isLive: isLive)
      // A terminal may be stopped, a pipe full: that must not hold up the load.
      if isLive {
        try write("\r\u{1B}[2K" + text.fitted(to: output.size.columns - 1))
      } else if stage != told {
        try write(text + "\n")
      }
      told = stage
      if isOver { return }
    }
  }

  private var connected: Int { counters.connected.load(ordering: .relaxed) }
  private var retries: Int { counters.retries.load(ordering: .relaxed) }

  private func write(_ text: String) throws {
    try co_shield { try co_blocking { [output] in output.note(text) } }
  }

  static func text(
    _ connected: Int,
    of clients: Int,
    _ retries: Int,
    _ delivered: Int,
    of total: Int,
    isLive: Bool
  ) -> String {
    let again = retries > 0 ? " after \(retries.grouped) retries" : ""
    guard delivered > 0 else { return "\(connected.grouped) of \(clients.grouped) clients connected\(again)" }
    let share = total == 0 ? 1 : min(1, Double(delivered) / Double(total))
    let numbers = "\(delivered.grouped) of \(total.grouped) deliveries (\(Int(share * 100)) %)"
    guard isLive else { return numbers }
    let full = Int(share * Double(barWidth))
    return String(repeating: "━", count: full) + String(repeating: "─", count: barWidth - full) + "  " + numbers
  }
}
#endif
