#if Demo
import Foundation
import Histogram

/// Latencies by percentile, drawn with characters.
///
/// As in HdrHistogram's own plots, there are as many columns from 90 % to 99 % as up to 90 %, and so on. The height is
/// logarithmic.
struct LatencyPlot {
  static let height = 10
  private static let blocks = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"]
  /// The columns for a factor of ten in what is beyond the percentile.
  private static let columnsForADecade = 14

  let latencies: ChatLoad.Latencies

  /// The plot's lines, none longer than `columns`; no line if nothing was recorded.
  func lines(columns: Int) -> [String] {
    let count = Double(latencies.totalCount)
    guard count > 0 else { return [] }
    // No further than to a single latency.
    let decades = min(max(1, log10(count)), 5)
    let room = max(8, columns - Self.label("").count - 4)
    let width = min(room, Int(decades * Double(Self.columnsForADecade)))
    let perDecade = Double(width) / decades
    let values = (0..<width).map { column in
      value(at: 100 * (1 - pow(10, -Double(column + 1) / perDecade)))
    }
    let (bottom, top) = Self.bounds(values)
    let heights = values.map { (log10($0) - log10(bottom)) / (log10(top) - log10(bottom)) * Double(Self.height) }
    let rows = (0..<Self.height).reversed().map { row in
      let name = row == Self.height - 1 ? Self.text(top) : row == 0 ? Self.text(bottom) : ""
      return Self.label(name) + " │" + heights.map { Self.block($0 - Double(row)) }.joined()
    }
    let axis = Self.label("") + " └" + String(repeating: "─", count: width)
    return rows + [axis, Self.label("") + "  " + Self.names(width, perDecade)]
  }

  private func value(at percentile: Double) -> Double { Double(max(1, latencies.valueAtPercentile(percentile))) }

  /// One, two or five times a power of ten, around all values.
  private static func bounds(_ values: [Double]) -> (bottom: Double, top: Double) {
    let steps = (0...8).flatMap { power in [1, 2, 5].map { $0 * pow(10, Double(power)) } }
    let (least, most) = (values.min() ?? 1, values.max() ?? 1)
    let bottom = steps.last { $0 <= least } ?? 1
    return (bottom, steps.first { $0 >= most && $0 > bottom } ?? 2 * most)
  }

  private static func block(_ part: Double) -> String {
    // Even the least value has a mark.
    blocks[min(max(Int((part * 8).rounded()), part > -0.5 && part <= 0.0625 ? 1 : 0), 8)]
  }

  /// The percentiles below the axis, each under its column.
  private static func names(_ width: Int, _ perDecade: Double) -> String {
    var line = ""
    for (name, decades) in [("50 %", 0.30103), ("90 %", 1), ("99 %", 2), ("99.9 %", 3), ("99.99 %", 4)] {
      let column = Int((decades * perDecade).rounded()) - 1
      guard column >= line.count, column + name.count <= width else { continue }
      line += String(repeating: " ", count: column - line.count) + name + " "
    }
    return String(line.dropLast())
  }

  private static func label(_ text: String) -> String { String(repeating: " ", count: 8 - text.count) + text }

  /// "250 µs", "1.2 ms", "3.40 s": a number of microseconds.
  static func text(_ microseconds: Double) -> String {
    switch microseconds {
    case ..<1_000: "\(Int(microseconds.rounded())) µs"
    case ..<10_000: String(format: "%.1f ms", microseconds / 1_000)
    case ..<1_000_000: "\(Int((microseconds / 1_000).rounded())) ms"
    default: String(format: "%.1f s", microseconds / 1_000_000)
    }
  }
}
#endif
