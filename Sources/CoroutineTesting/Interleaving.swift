import Coroutine

/// The table of a failing run: one column for each coroutine, one row for each step.
///
/// Where that would be wider than a screen, each row has the coroutine's name in its place.
enum Interleaving {
  private static var mostRows: Int { 200 }
  private static var mostWidth: Int { 34 }
  private static var mostOfRow: Int { 200 }

  /// Returns the text about `run`, which shrinking has made of `found`.
  static func text(of run: Run, shrunkFrom found: Run, _ error: any Error, token: String) -> String {
    let (shown, before) = (measures(of: run), measures(of: found))
    var text = "\(sentence(of: error))\n\nCO_REPLAY=\(token)\n\(shown)\n"
    if before != shown { text += "shrunk from \(before)\n" }
    guard !run.steps.isEmpty else { return text }
    var columns: [UInt64] = []
    var titles: [UInt64: String] = [:]
    text += "\n"
    for step in run.steps where titles[step.id] == nil {
      columns.append(step.id)
      let title = step.id < Candidate.noJob ? "#\(step.id)" + (step.name.map { " \"\($0.asName)\"" } ?? "") : "handler"
      titles[step.id] = title
      if step.id < Candidate.noJob { text += "\(title), launched at \(step.launchSite)\n" }
    }
    let steps = run.steps.suffix(mostRows)
    let widths = columns.map { column in
      let longest = steps.reduce(titles[column]!.count) { $1.id == column ? max($0, $1.end.count) : $0 }
      return min(mostWidth, longest)
    }
    let isTable = widths.reduce(0) { $0 + $1 + 2 } <= mostOfRow
    text += "\n"
    if isTable {
      text += row(columns.map { titles[$0]! }, widths)
      text += row(widths.map { String(repeating: "-", count: $0) }, widths)
    }
    if steps.count < run.steps.count { text += "(\(run.steps.count - steps.count) earlier steps)\n" }
    let longest = min(mostWidth, columns.reduce(0) { max($0, titles[$1]!.count) })
    for step in steps {
      text +=
        isTable
        ? row(columns.map { $0 == step.id ? step.end : "" }, widths)
        : row([titles[step.id]!, step.end], [longest, step.end.count])
    }
    if !(error is World.DeadlockError), !(error is World.LeftRunningError) { text += "\n" + run.dump }
    return text
  }

  /// The text of an error, in one line; the lines of a dump and of a failed expectation remain.
  private static func sentence(of error: any Error) -> String {
    switch error {
    case is World.DeadlockError, is World.LeftRunningError, is World.TimeLimitError, is FailedExpectation:
      "\(error)".split(separator: "\n", omittingEmptySubsequences: false).map { String($0).asLine }
        .joined(separator: "\n")
    default: asLine(error)
    }
  }

  private static func measures(of run: Run) -> String {
    "\(run.switches) switch\(run.switches == 1 ? "" : "es"), \(run.faults) fault\(run.faults == 1 ? "" : "s")"
      + ", \(run.time) of virtual time"
  }

  private static func row(_ cells: [String], _ widths: [Int]) -> String {
    var line = ""
    for (cell, width) in zip(cells, widths) {
      let shown = cell.prefix(width)
      line += shown + String(repeating: " ", count: width + 2 - shown.count)
    }
    while line.last == " " { line.removeLast() }
    return line + "\n"
  }
}
