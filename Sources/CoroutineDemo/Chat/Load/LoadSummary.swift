#if Demo
import Foundation
import Histogram

/// What a load has found, as text.
enum LoadSummary {
  static func text(_ result: LoadResult, columns: Int) -> String {
    let plan = result.plan
    let rooms = plan.clients == 0 ? 0 : plan.room(of: plan.clients - 1) + 1
    var lines = [
      "\(plan.clients) clients in \(rooms) rooms, \(plan.messages) messages each, \(plan.window) under way",
      row("messages", result.sent, rate(result.sent, result.duration)),
      row("deliveries", result.received, rate(result.received, result.duration)),
      row("lost", result.lost),
      row("duplicated", result.duplicated),
      row("out of order", result.reordered),
    ]
    if !result.failures.isEmpty { lines.append(row("failed clients", result.failures.count)) }
    lines.append("")
    if result.latencies.totalCount > 0 {
      lines.append("Time from send to delivery")
      lines += [50, 90, 99, 99.9, 100].map { percentile in
        let name = percentile == 100 ? "longest" : "\(percentile.readable) %"
        return row(name, LatencyPlot.text(Double(result.latencies.valueAtPercentile(percentile))))
      }
      lines += [""] + LatencyPlot(latencies: result.latencies).lines(columns: columns)
    }
    return lines.joined(separator: "\n") + "\n"
  }

  private static func row(_ name: String, _ number: Int, _ remark: String = "") -> String {
    row(name, number.grouped) + (remark.isEmpty ? "" : "  \(remark)")
  }

  private static func row(_ name: String, _ value: String) -> String {
    "  \(name)" + String(repeating: " ", count: max(1, 26 - name.count - value.count)) + value
  }

  private static func rate(_ count: Int, _ duration: Duration) -> String {
    let seconds = duration / .seconds(1)
    return seconds > 0 ? "\(Int(Double(count) / seconds).grouped) a second" : ""
  }
}

extension Int {
  /// 1,234,567.
  var grouped: String {
    var digits = String(magnitude)
    var groups: [String] = []
    while digits.count > 3 {
      groups.insert(String(digits.suffix(3)), at: 0)
      digits.removeLast(3)
    }
    return (self < 0 ? "-" : "") + ([digits] + groups).joined(separator: ",")
  }
}
#endif
