#if Demo
/// What the display knows of the feeds, and how it looks: a value, without a terminal or a clock of its own.
struct FeedBoard: Sendable {
  static let frames = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"]
  private static let barWidth = 20
  private static let nameWidth = 24

  /// nil: not begun.
  private(set) var reports: [FeedReport?]
  private var running: Set<Int> = []
  private(set) var ended = 0

  /// For `count` feeds.
  init(count: Int) {
    reports = Array(repeating: nil, count: count)
  }

  mutating func take(_ news: FeedNews) {
    reports[news.index] = news.report
    switch news.event {
    case .began: running.insert(news.index)
    case .progressed: break
    case .ended:
      running.remove(news.index)
      ended += 1
    }
  }

  /// A line for each feed, if `rows` leaves room for all, else for those under way; then one for all of them together.
  ///
  /// None is longer than `columns`: a line that wraps would throw the redrawing off by one.
  func lines(frame: Int, columns: Int, rows: Int, colour: Bool) -> [String] {
    let shown = reports.count + 2 <= rows ? Array(reports.indices) : Array(running.sorted().prefix(max(rows - 3, 1)))
    return shown.map { line(reports[$0], frame: frame, columns: columns, colour: colour) }
      + [total(columns: columns, colour: colour)]
  }

  private func line(_ report: FeedReport?, frame: Int, columns: Int, colour: Bool) -> String {
    guard let report, columns > 4 else { return Self.fit("  · waiting", columns) }
    let (mark, shade) =
      switch report.outcome {
      case .underWay: (Self.frames[frame % Self.frames.count], 36)
      case .read: ("✓", 32)
      case .unchanged: ("=", 32)
      case .failed: ("✗", 31)
      }
    let remark =
      switch report.outcome {
      case .underWay, .read: "\(report.bytes.readableBytes), \(report.items) items"
      case .unchanged: "not modified"
      case .failed(let failure): failure.brief
      }
    let name = report.shortName.padded(to: Self.nameWidth)
    let text = Self.fit("\(name)  \(Self.bar(Self.fraction(of: report)))  \(remark)", columns - 4)
    return colour ? "  \u{1B}[\(shade)m\(mark)\u{1B}[0m \(text)" : "  \(mark) \(text)"
  }

  private func total(columns: Int, colour: Bool) -> String {
    let known = reports.compactMap(\.self)
    let new = known.reduce(0) { $0 + $1.new }
    let bytes = known.reduce(0) { $0 + $1.bytes }
    let share = reports.isEmpty ? 1 : Double(ended) / Double(reports.count)
    let name = "\(ended) of \(reports.count) feeds".padded(to: Self.nameWidth)
    let text = Self.fit("    \(name)  \(Self.bar(share))  \(new) new items, \(bytes.readableBytes)", columns)
    return colour ? "\u{1B}[1m\(text)\u{1B}[0m" : text
  }

  /// How full the bar is; nil where nobody knows how much there is to come.
  private static func fraction(of report: FeedReport) -> Double? {
    switch report.outcome {
    case .read, .unchanged: 1
    case .underWay, .failed: report.expectedBytes.map { $0 > 0 ? min(1, Double(report.bytes) / Double($0)) : 1 }
    }
  }

  private static func bar(_ fraction: Double?) -> String {
    guard let fraction else { return String(repeating: "┄", count: barWidth) }
    let full = Int((fraction * Double(barWidth)).rounded(.down))
    return String(repeating: "━", count: full) + String(repeating: "─", count: barWidth - full)
  }

  private static func fit(_ text: String, _ columns: Int) -> String { text.fitted(to: max(columns - 1, 0)) }
}
#endif
