#if Demo
/// The summary: a line for each feed and one for all of them together.
enum FeedTable {
  private static let heads = ["feed", "items", "new", "bytes", "time", "error"]
  private static let widestName = 40

  static func text(_ reports: [FeedReport]) -> String {
    var rows = reports.map { report in
      [
        (report.title.isEmpty ? report.name : report.title).cut(to: widestName), "\(report.items)", "\(report.new)",
        report.bytes.readableBytes, report.duration.readable, remark(on: report),
      ]
    }
    let failures = reports.count { $0.failure != nil }
    rows.append([
      "\(reports.count) feeds", "\(reports.reduce(0) { $0 + $1.items })", "\(reports.reduce(0) { $0 + $1.new })",
      reports.reduce(0) { $0 + $1.bytes }.readableBytes, "", failures == 0 ? "" : "\(failures) failed",
    ])
    let widths = heads.indices.map { column in
      max(heads[column].columns, rows.map { $0[column].columns }.max() ?? 0)
    }
    let rule = widths.dropLast().map { String(repeating: "─", count: $0) }.joined(separator: "  ") + "  ─────"
    var lines = [line(heads, widths), rule] + rows.map { line($0, widths) }
    lines.insert(rule, at: lines.count - 1)
    return lines.joined(separator: "\n") + "\n"
  }

  private static func remark(on report: FeedReport) -> String {
    switch report.outcome {
    case .underWay, .read: ""
    case .unchanged: "(not modified)"
    case .failed(let failure): failure.brief
    }
  }

  /// Words to the left, numbers to the right.
  private static func line(_ cells: [String], _ widths: [Int]) -> String {
    let padded = cells.indices.map { column in
      let space = String(repeating: " ", count: widths[column] - cells[column].columns)
      return column == 0 || column == cells.count - 1 ? cells[column] + space : space + cells[column]
    }
    return padded.joined(separator: "  ").trimmingSuffix(of: " ")
  }
}

extension String {
  fileprivate func trimmingSuffix(of character: Character) -> String {
    var text = self[...]
    while text.last == character { text.removeLast() }
    return String(text)
  }
}
#endif
