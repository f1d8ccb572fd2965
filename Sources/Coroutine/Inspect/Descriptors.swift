internal import CLinux

/// The open descriptors of the library, grouped by the launch site of the coroutine that has opened them.
///
/// A leak of connections is a large group for which no coroutine waits. The peer and the idle time are the kernel's, so
/// that sending and receiving cost nothing; who has opened it is noted when that happens.
enum DescriptorReport {
  private struct Line {
    let opened: WatchTable.Opened
    let idle: Int64
    let waiting: AnyJob?
    let text: String
  }

  private static var mostLines: Int { 16 }

  static func text() -> String {
    var (waiting, names): ([Int32: AnyJob], [UInt64: String]) = ([:], [:])
    let all = WatchTable.open
    let openers = Set(all.map(\.coroutine))
    for job in LiveJobs.list() {
      if let number = InspectedJob(job).descriptor { waiting[number] = job }
      if openers.contains(job.id) { names[job.id] = JobNames.title(of: job) }
    }
    let now = Clock.now
    let lines = all.map { line($0, now, waiting[$0.number], names[$0.coroutine]) }
    let groups = Dictionary(grouping: lines) { $0.opened.launchSite?.description ?? "" }
      .sorted { ($1.value.count, $0.key) < ($0.value.count, $1.key) }
    let head = "\(all.count) open descriptor\(all.count == 1 ? "" : "s") of the library\n"
    return groups.reduce(into: head) { $0 += "\n" + describe($1.key, $1.value) }
  }

  private static func describe(_ site: String, _ lines: [Line]) -> String {
    let leaked = lines.count { $0.waiting == nil }
    let opener = site.isEmpty ? "outside of coroutines" : "by coroutines launched at \(site)"
    var text = "\(lines.count) opened \(opener), no coroutine waits for \(leaked)"
    if let longest = lines.map(\.idle).max(), longest >= 0 { text += ", idle for up to \(time(longest))" }
    text += "\n"
    let sorted = lines.sorted { ($1.idle, $0.opened.number) < ($0.idle, $1.opened.number) }
    for line in sorted.prefix(mostLines) { text += "  \(line.text)\n" }
    if lines.count > mostLines { text += "  \(lines.count - mostLines) more\n" }
    return text
  }

  private static func line(_ opened: WatchTable.Opened, _ now: UInt64, _ waiting: AnyJob?, _ opener: String?) -> Line {
    let number = opened.number
    let peer = withUnsafeTemporaryAllocation(of: CChar.self, capacity: 256) { text in
      guard let start = text.baseAddress else { return "" }
      clinux_describe_socket(number, start, text.count)
      return String(cString: start)
    }
    let idle = clinux_socket_idle(number)
    let age = Int64(clamping: (now - min(now, opened.time)) / 1_000_000)
    var text = "\(number)\(peer.isEmpty ? "" : " \(peer.asWord)"), opened \(time(age)) ago"
    if opened.coroutine != 0 { text += " by \(opener ?? "#\(opened.coroutine), which has ended")" }
    if idle >= 0 { text += ", idle for \(time(idle))" }
    text += waiting.map { ", \(JobNames.title(of: $0)) waits for it" } ?? ", no coroutine waits for it"
    return Line(opened: opened, idle: idle, waiting: waiting, text: text)
  }

  private static func time(_ milliseconds: Int64) -> String {
    milliseconds < 10_000 ? "\(milliseconds) ms" : "\(milliseconds / 1_000) s"
  }
}

extension InspectedJob {
  /// The number of the descriptor for which the job waits.
  fileprivate var descriptor: Int32? {
    guard isWaiting else { return nil }
    switch kind {
    case .readable, .writable, .descriptor: return Int32(truncatingIfNeeded: number)
    default: return nil
    }
  }
}
