import Coroutine

/// The table of a failing run: one column for each coroutine, one row for each step.
enum Interleaving {
  private static var mostRows: Int { 200 }
  private static var width: Int { 36 }

  static func text(of run: Run, _ error: any Error, token: String) -> String {
    var text = "\(error)\n\nCO_REPLAY=\(token)\n"
    text += "\(run.switches) switch\(run.switches == 1 ? "" : "es"), \(run.faults) fault\(run.faults == 1 ? "" : "s")"
    text += ", \(run.time) of virtual time\n"
    guard !run.steps.isEmpty else { return text }
    var columns: [UInt64] = []
    var titles: [UInt64: String] = [:]
    text += "\n"
    for step in run.steps where titles[step.id] == nil {
      columns.append(step.id)
      let title = step.id < Candidate.noJob ? "#\(step.id)" + (step.name.map { " \"\($0)\"" } ?? "") : "handler"
      titles[step.id] = title
      if step.id < Candidate.noJob { text += "\(title), launched at \(step.launchSite)\n" }
    }
    text += "\n" + row(columns.map { titles[$0] ?? "" })
    text += row(columns.map { _ in String(repeating: "-", count: width - 2) })
    let steps = run.steps.suffix(mostRows)
    if steps.count < run.steps.count { text += "(\(run.steps.count - steps.count) earlier steps)\n" }
    for step in steps {
      text += row(columns.map { $0 == step.id ? step.end : "" })
    }
    if !(error is Deadlock), !(error is LeftRunning) { text += "\n" + run.dump }
    return text
  }

  private static func row(_ cells: [String]) -> String {
    var line = ""
    for cell in cells {
      let shown = cell.prefix(width - 1)
      line += shown + String(repeating: " ", count: width - shown.count)
    }
    while line.last == " " { line.removeLast() }
    return line + "\n"
  }
}
