import Coroutine

/// The table of a failing run: one column for each coroutine, one row for each step.
///
/// No cell is cut, because what it waits for stands at its end. Where a table would be wider than a screen, each row
/// has the coroutine's name in its place. The whole has at most 60 lines: the failure is at the end of the steps, so
/// the earlier ones are left out, and so are the steps of the library's own coroutines.
enum Interleaving {
  private static var mostLines: Int { 60 }
  private static var mostOfTitle: Int { 34 }
  private static var mostOfRow: Int { 200 }
  /// The most lines of one part; an error that has a dump in it may have more, and then no other dump follows.
  private static var mostOfPart: Int { 10 }

  /// Returns the text about `run`, which shrinking has made of `found`.
  ///
  /// `remark` says what else is wrong with the run.
  static func text(
    of run: Run,
    shrunkFrom found: Run,
    _ error: any Error,
    _ remark: (any Error)?,
    token: String
  ) -> String {
    let hasDump = error is World.DeadlockError || error is World.LeftRunningError
    let (shown, before) = (measures(of: run), measures(of: found))
    let sentences = [error, remark].compactMap { $0.map(sentence) }.flatMap { $0.split(separator: "\n") }
    var lines = part(sentences.map(String.init), most: hasDump ? 2 * mostOfPart : mostOfPart)
    lines += ["", "CO_REPLAY=\(token)", shown]
    if before != shown { lines.append("shrunk from \(before)") }
    if run.steps.isEmpty { return lines.joined(separator: "\n") + "\n" }
    // All handlers share a column.
    let steps = run.steps.filter { !isOwn($0.name, $0.launchSite) }.map { step in
      var step = step
      step.id = min(step.id, Candidate.noJob)
      return step
    }
    let titles = titles(of: steps)
    let launched = titles.order.compactMap { id in
      titles.sites[id].map { "\(titles.texts[id]!), \(Candidate.isTask(id) ? "created in" : "launched at") \($0)" }
    }
    if !launched.isEmpty { lines += [""] + part(launched, most: mostOfPart) }
    let dump = hasDump ? [] : [""] + part(run.dump.split(separator: "\n").map(String.init), most: mostOfPart)
    // The empty line above the table, its head, and the line about what is left out.
    lines += [""] + table(steps, titles, of: run.steps.count, most: mostLines - lines.count - dump.count - 4)
    return (lines + dump).joined(separator: "\n") + "\n"
  }

  /// The lines without those of the library's own coroutines, and no more than `most`.
  private static func part(_ lines: [String], most: Int) -> [String] {
    let lines = lines.filter { !isOwn($0) }
    return lines.count <= most ? lines : lines.prefix(most - 1) + ["(\(lines.count - most + 1) more lines)"]
  }

  private struct Titles {
    var order: [UInt64] = []
    var texts: [UInt64: String] = [:]
    var sites: [UInt64: String] = [:]
  }

  private static func titles(of steps: [SimulatedStep]) -> Titles {
    var titles = Titles()
    for step in steps where titles.texts[step.id] == nil {
      titles.order.append(step.id)
      guard step.id < Candidate.noJob else {
        titles.texts[step.id] = "handler"
        continue
      }
      let number = Candidate.isTask(step.id) ? "Task \(step.id & ~Candidate.firstTask)" : "#\(step.id)"
      titles.texts[step.id] = number + (step.name.map { " \"\($0.asName)\"" } ?? "")
      if !step.launchSite.isEmpty { titles.sites[step.id] = step.launchSite }
    }
    return titles
  }

  private static func table(_ all: [SimulatedStep], _ titles: Titles, of count: Int, most: Int) -> [String] {
    let steps = all.suffix(most)
    // Only those that have a step in it.
    let columns = titles.order.filter { id in steps.contains { $0.id == id } }
    let widths = columns.map { column in
      steps.reduce(titles.texts[column]!.count) { $1.id == column ? max($0, $1.end.count) : $0 }
    }
    let isTable = widths.reduce(0) { $0 + $1 + 2 } <= mostOfRow
    var lines: [String] = []
    if isTable {
      lines.append(row(columns.map { titles.texts[$0]! }, widths))
      lines.append(row(widths.map { String(repeating: "-", count: $0) }, widths))
    }
    let earlier = all.count - steps.count
    let own = count - all.count
    let left = [earlier > 0 ? "\(earlier) earlier steps" : nil, own > 0 ? "\(own) steps of the library's own" : nil]
    if earlier + own > 0 { lines.append("(without \(left.compactMap { $0 }.joined(separator: ", and ")))") }
    let longest = min(mostOfTitle, columns.reduce(0) { max($0, titles.texts[$1]!.count) })
    for step in steps {
      lines.append(
        isTable
          ? row(columns.map { $0 == step.id ? step.end : "" }, widths)
          : row([titles.texts[step.id]!, step.end], [longest, step.end.count])
      )
    }
    return lines
  }

  // MARK: The library's own

  /// The names of the coroutines of the library that run no code of users.
  private static let ownNames: Set<String> = [
    "accept", "accepting", "connect", "copy", "diagnostics", "drain", "from tls", "http sweep", "to tls",
  ]

  private static func isOwn(_ name: String?, _ launchSite: some StringProtocol) -> Bool {
    guard let name, ownNames.contains(name) else { return false }
    return ["Coroutine/", "CoroutineNet/", "CoroutineHTTP/"].contains { launchSite.hasPrefix($0) }
  }

  /// Whether a line of a dump, `#3 "accept" waiting …, launched at CoroutineNet/Server.swift:150`, is about such a one.
  private static func isOwn(_ line: String) -> Bool {
    let mark = ", launched at "
    guard line.hasPrefix("#"), let quoted = line.split(separator: "\"", maxSplits: 2).dropFirst().first,
      let range = line.ranges(of: mark).last
    else { return false }
    return isOwn(String(quoted), line[range.upperBound...])
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
    return line
  }
}
