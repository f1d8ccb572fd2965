#if HTTP
import Coroutine
import Glibc

/// The page for people: what is wrong, the numbers, the links, and where the coroutines are.
enum DiagnosticsPage {
  /// The number of characters of the stacks that the page has; the link has them all.
  private static var mostStacks: Int { 100_000 }

  static let links: [(path: String, what: String)] = [
    ("/stacks", "coroutines with equal stacks and waits, the largest group first"),
    ("/dump", "one line for each coroutine"),
    ("/deadlocks", "circles of coroutines that wait for one another, with their stacks"),
    ("/queues", "channels, mailboxes and schedulers that hold something"),
    ("/ended", "the last coroutines that have ended"),
    ("/descriptors", "open connections: peer, opened by, idle since, who waits for each"),
    ("/snapshot.json?stacks=1", "every coroutine with its return addresses, for tools"),
    ("/metrics", "the counters, for Prometheus"),
    ("/profile?kind=live", "the stacks of all coroutines, for go tool pprof"),
    ("/profile?kind=waiting", "the same, by the time that they have waited"),
    ("/profile?kind=growth", "the same, by their growth since the profile before"),
    ("/trace?seconds=1", "what happens in the next second, for ui.perfetto.dev"),
  ]

  static func text() -> String {
    let (now, before) = (Sample(), last.withLock { $0 })
    // A page that follows at once would show the rates of a moment.
    if before.map({ now.time > $0.time + .milliseconds(500) }) ?? true { last.withLock { $0 = now } }
    let metrics = now.metrics
    let rates = Rates(now, before)
    let queues = CoroutineRuntime.queues()
    let program = (CommandLine.arguments.first ?? "").split(separator: "/").last ?? "a program"
    let title = "Coroutines of \(escaped(String(program).asWord)), process \(getpid())"
    return """
      <!doctype html>
      <html lang="en">
      <head>
      <meta charset="utf-8">
      <meta name="viewport" content="width=device-width, initial-scale=1">
      <meta http-equiv="refresh" content="5">
      <title>\(title)</title>
      <style>\(style)</style>
      </head>
      <body>
      <h1>\(title)</h1>
      <p>\(rates.sentence)</p>
      \(deadlocks())\(alerts(metrics, rates, queues))<div class="columns">
      <section><h2>Coroutines</h2>\(table(coroutines(metrics)))</section>
      <section><h2>Waits</h2>\(table(waits(metrics)))</section>
      <section><h2>Since the start</h2>\(table(counters(metrics, rates)))</section>
      <section><h2>Times</h2>\(table(times(metrics)))</section>
      <section><h2>Resources</h2>\(table(resources(metrics)))</section>
      <section><h2>Process</h2>\(table(ProcessFacts.rows()))</section>
      <section><h2>Deadlines that have passed</h2>\(table(timeouts(metrics)))</section>
      </div>
      <h2>Queues</h2>
      \(list(queues.map(\.line)))
      <h2>The last that have ended</h2>
      \(list(CoroutineRuntime.ended.prefix(16).map(\.line)))
      <h2>More</h2>
      \(table(links.map { ("<a href=\"\($0.path)\">\($0.path)</a>", $0.what) }, isText: true))
      <h2>Where they are</h2>
      <pre>\(stacks())</pre>
      </body>
      </html>

      """
  }

  // MARK: Rates

  /// The counters at a time.
  private struct Sample: Sendable {
    let metrics = CoroutineRuntime.metrics
    let time = ContinuousClock.now
  }

  /// The sample of the last page but for pages in the same half second; each of several readers shortens its time.
  private static let last = ThreadMutex<Sample?>(nil)

  /// What was counted since an earlier page.
  private struct Rates {
    private let now: Sample
    private let before: Sample?

    init(_ now: Sample, _ before: Sample?) { (self.now, self.before) = (now, before) }

    var sentence: String {
      guard let seconds else { return "Read once; the next page, in 5 s, has rates." }
      return "Rates are those of the last \(tenths(seconds)) s. The page is read again every 5 s."
    }

    private var seconds: Double? { before.map { max(0.001, ($0.time.duration(to: now.time)) / .seconds(1)) } }

    private func tenths(_ number: Double) -> String {
      let tenths = Int((number * 10).rounded())
      return "\(tenths / 10).\(tenths % 10)"
    }

    /// How much a counter has grown; nil without an earlier page.
    func growth(_ counter: KeyPath<CoroutineRuntime.Metrics, UInt64>) -> UInt64? {
      before.map { now.metrics[keyPath: counter] &- $0.metrics[keyPath: counter] }
    }

    /// A total, with its rate.
    func text(_ counter: KeyPath<CoroutineRuntime.Metrics, UInt64>) -> String {
      let total = "\(now.metrics[keyPath: counter])"
      guard let seconds, let growth = growth(counter), growth > 0 else { return total }
      let rate = Double(growth) / seconds
      return total + " <small>+\(rate < 10 ? tenths(rate) : "\(Int(min(rate, 1e15)))")/s</small>"
    }
  }

  // MARK: Parts

  private static func deadlocks() -> String {
    let circles = CoroutineRuntime.deadlocks()
    if circles.isEmpty { return "" }
    let lines = circles.map { "<li>\(linked(escaped(DiagnosticsHandler.line($0))))</li>" }
    return "<div class=\"alert\"><a href=\"/deadlocks\">Deadlocks</a><ul>\(lines.joined())</ul></div>\n"
  }

  /// What an operator should look at first, each with what it means.
  private static func alerts(
    _ metrics: CoroutineRuntime.Metrics,
    _ rates: Rates,
    _ queues: [CoroutineRuntime.HeldQueue]
  ) -> String {
    var lines: [String] = []
    if metrics.blockingWaiting > 0 {
      lines.append(
        "\(metrics.blockingWaiting) bodies of co_blocking wait for a thread: all \(metrics.blockingThreads) are taken"
      )
    }
    if let stalls = rates.growth(\.stalls), stalls > 0 {
      lines.append("\(stalls) stall\(stalls == 1 ? "" : "s"): coroutines kept their threads without a wait or a yield")
    }
    if let shortages = rates.growth(\.spareShortages), shortages > 0 {
      lines.append("all spare workers were taken: coroutines keep their threads, and others wait behind them")
    }
    for queue in queues where queue.oldest >= .seconds(10) { lines.append(queue.line) }
    if let failed = rates.growth(\.failed), failed > 0 {
      lines.append("\(failed) coroutine\(failed == 1 ? " has" : "s have") failed")
    }
    if let restarts = rates.growth(\.restarts), restarts > 0 {
      lines.append("actors were restarted \(restarts) time\(restarts == 1 ? "" : "s"), below those that have ended")
    }
    let snapshot = CoroutineRuntime.snapshot()
    if let late = snapshot.lateTimers.first, late >= .milliseconds(100) {
      lines.append("timers are late by \(seconds(late)): a thread is kept, or there is too much work")
    }
    let locks = snapshot.coroutines.lazy.filter { $0.wait?.kind == "lock" && $0.since >= .seconds(1) }
    if let longest = locks.max(by: { $0.since < $1.since }), let wait = longest.wait {
      lines.append("#\(longest.id) has waited for \(seconds(longest.since)): \(wait.text)")
    }
    if lines.isEmpty { return "" }
    return "<div class=\"alert\"><ul>\(lines.map { "<li>\(linked(escaped($0)))</li>" }.joined())</ul></div>\n"
  }

  private static func seconds(_ time: Duration) -> String {
    // A deadline may be any duration, below zero as well.
    let milliseconds = Int64(min(max(0, time / .milliseconds(1)), 1e18))
    return milliseconds < 10_000 ? "\(milliseconds) ms" : "\(milliseconds / 1_000) s"
  }

  private static func coroutines(_ metrics: CoroutineRuntime.Metrics) -> [(String, String)] {
    [
      ("live", "\(metrics.live)"), ("ready", "\(metrics.ready)"), ("running", "\(metrics.running)"),
      ("waiting", "\(metrics.waiting.values.reduce(0, +))"),
    ]
  }

  private static func waits(_ metrics: CoroutineRuntime.Metrics) -> [(String, String)] {
    metrics.waiting.sorted { ($1.value, $0.key) < ($0.value, $1.key) }.map { (escaped($0.key), "\($0.value)") }
  }

  private static func counters(_ metrics: CoroutineRuntime.Metrics, _ rates: Rates) -> [(String, String)] {
    [
      ("launched", rates.text(\.launched)), ("ended", rates.text(\.ended)), ("failed", rates.text(\.failed)),
      ("cancelled", rates.text(\.cancelled)), ("switches", rates.text(\.switches)), ("steals", rates.text(\.steals)),
      ("stalls", rates.text(\.stalls)), ("spare workers made", rates.text(\.spareWorkers)),
      ("actors restarted", rates.text(\.restarts)),
    ]
  }

  /// The places whose deadlines have passed most often.
  private static func timeouts(_ metrics: CoroutineRuntime.Metrics) -> [(String, String)] {
    let sorted = metrics.timeouts.sorted { ($1.value, $0.key) < ($0.value, $1.key) }
    let limits = CoroutineRuntime.passedLimits()
    return sorted.prefix(8).map { site, count in
      let limit = limits[site].map { ", the last of \(seconds($0))" } ?? ""
      return (escaped(site) + limit, "\(count)")
    }
  }

  private static func times(_ metrics: CoroutineRuntime.Metrics) -> [(String, String)] {
    [
      ("wake to run", quantiles(metrics.wakeToRun)), ("run length", quantiles(metrics.runLength)),
      ("timers late by", quantiles(metrics.timerLateness)),
    ]
  }

  private static func resources(_ metrics: CoroutineRuntime.Metrics) -> [(String, String)] {
    [
      ("stacks in use", "\(metrics.stacksInUse)"),
      ("stacks pooled", "\(metrics.stacksPooled)"), ("memory of stacks, at least", "\(metrics.stackBytes / 1_024) KiB"),
      ("blocking threads", "\(metrics.blockingThreads)"), ("waiting for one", "\(metrics.blockingWaiting)"),
      ("descriptors of the library", "\(metrics.descriptors)"),
    ]
  }

  /// The bounds below which half, and 99 of 100, of the samples are.
  private static func quantiles(_ histogram: CoroutineRuntime.Metrics.Histogram) -> String {
    let count = histogram.counts.reduce(0, +)
    if count == 0 { return "–" }
    func bound(_ share: Double) -> String {
      var seen: UInt64 = 0
      for (bound, more) in zip(histogram.bounds, histogram.counts) {
        seen += more
        if Double(seen) >= share * Double(count) { return "≤ " + short(bound) }
      }
      return "> " + short(histogram.bounds.last ?? .zero)
    }
    return "50 % \(bound(0.5)), 99 % \(bound(0.99))"
  }

  /// A bound in the largest unit in which it is a whole number.
  private static func short(_ bound: Duration) -> String {
    let microseconds = Int64(bound / .microseconds(1))
    if microseconds % 1_000 != 0 { return "\(microseconds) µs" }
    return microseconds % 1_000_000 != 0 ? "\(microseconds / 1_000) ms" : "\(microseconds / 1_000_000) s"
  }

  private static func stacks() -> String {
    let text = CoroutineRuntime.dump(.stacks)
    let shown = text.prefix(mostStacks)
    return linked(escaped(String(shown)))
      + (shown.endIndex == text.endIndex ? "" : "…\n<a href=\"/stacks\">all of them</a>")
  }

  // MARK: HTML

  /// Lines about coroutines, with links to those that they name.
  private static func list(_ lines: [String]) -> String {
    if lines.isEmpty { return "<p>none</p>" }
    return "<pre>\(lines.map { linked(escaped($0)) }.joined(separator: "\n"))</pre>"
  }

  private static func table(_ rows: [(String, String)], isText: Bool = false) -> String {
    if rows.isEmpty { return "<p>none</p>" }
    let cell = isText ? "<td class=\"text\">" : "<td>"
    return "<table>" + rows.map { "<tr><th>\($0.0)</th>\(cell)\($0.1)</td></tr>" }.joined() + "</table>"
  }

  static func escaped(_ text: String) -> String {
    var result = ""
    result.reserveCapacity(text.utf8.count)
    for character in text.unicodeScalars {
      switch character {
      case "&": result += "&amp;"
      case "<": result += "&lt;"
      case ">": result += "&gt;"
      case "\"": result += "&quot;"
      default: result.unicodeScalars.append(character)
      }
    }
    return result
  }

  /// Makes a link of each number of a coroutine, `#17`, in a text that is escaped already.
  static func linked(_ html: String) -> String {
    var result = ""
    result.reserveCapacity(html.utf8.count)
    var rest = html.utf8[...]
    while let mark = rest.firstIndex(of: UInt8(ascii: "#")) {
      let digits = rest[rest.index(after: mark)...].prefix { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }
      result += rest[..<mark].asText
      let number = digits.asText
      // `&#39;` is a character, `closure #1` a function; a number of more digits is none of ours.
      let isOurs =
        !digits.isEmpty && digits.count < 20 && !rest[..<mark].suffix(8).elementsEqual("closure ".utf8)
        && (mark == rest.startIndex || rest[rest.index(before: mark)] != UInt8(ascii: "&"))
      result += isOurs ? "<a href=\"/coroutine?id=\(number)\">#\(number)</a>" : "#" + number
      rest = rest[digits.endIndex...]
    }
    return result + rest.asText
  }

  private static let style = """
    body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#222;background:#fff}
    h1{font-size:1.4em}h2{font-size:1.05em;margin:1.4em 0 .4em}
    .columns{display:flex;flex-wrap:wrap;gap:0 3em}
    table{border-collapse:collapse}th{text-align:left;font-weight:normal;padding:.15em 1.5em .15em 0}
    td{text-align:right;font-variant-numeric:tabular-nums}td.text{text-align:left;color:#555}small{color:#777}
    pre{background:#f4f4f4;padding:1em;overflow-x:auto;font-size:12px}
    .alert{border-left:4px solid #c00;background:#fee;padding:.6em 1em}.alert ul{margin:.3em 0;padding-left:1.2em}
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#222}
    td.text{color:#aaa}a{color:#8bf}.alert{background:#411}}
    """
}

extension Substring.UTF8View {
  fileprivate var asText: String { String(decoding: self, as: UTF8.self) }
}

// MARK: - The process

/// What the system knows of this process.
private enum ProcessFacts {
  static func rows() -> [(String, String)] {
    var rows: [(String, String)] = []
    if let running = secondsSinceStart() { rows.append(("started", "\(running) s ago")) }
    var use = rusage()
    if getrusage(__rusage_who_t(RUSAGE_SELF.rawValue), &use) == 0 {
      let (user, system) = (use.ru_utime, use.ru_stime)
      rows.append(("processor time", "\(user.tv_sec) s, \(system.tv_sec) s in the kernel"))
    }
    let status = text("/proc/self/status")
    for (key, name) in [("VmRSS:", "memory"), ("VmHWM:", "at most"), ("Threads:", "threads")] {
      guard let line = status.split(separator: "\n").first(where: { $0.hasPrefix(key) }) else { continue }
      rows.append((name, line.dropFirst(key.count).split(whereSeparator: \.isWhitespace).joined(separator: " ")))
    }
    var limit = rlimit()
    if getrlimit(Int32(RLIMIT_NOFILE.rawValue), &limit) == 0 {
      rows.append(("descriptors", "\(openDescriptors().map { "\($0)" } ?? "?") of \(limit.rlim_cur)"))
    }
    return rows
  }

  private static func openDescriptors() -> Int? {
    guard let folder = opendir("/proc/self/fd") else { return nil }
    defer { closedir(folder) }
    var count = 0
    while readdir(folder) != nil { count += 1 }
    // `.`, `..` and the one that reads.
    return count - 3
  }

  private static func secondsSinceStart() -> Int? {
    // The fields behind the name, which may have spaces; the 20th of them is the start, in ticks since the boot.
    let fields = text("/proc/self/stat").split(separator: ")").last?.split(separator: " ") ?? []
    var now = timespec()
    guard fields.count > 19, let ticks = Int(fields[19]), clock_gettime(CLOCK_BOOTTIME, &now) == 0 else { return nil }
    return now.tv_sec - ticks / sysconf(Int32(_SC_CLK_TCK))
  }

  /// A file of /proc; empty if it cannot be read.
  private static func text(_ path: String) -> String {
    let file = open(path, O_RDONLY | O_CLOEXEC)
    guard file >= 0 else { return "" }
    defer { close(file) }
    var (bytes, part): ([UInt8], [UInt8]) = ([], Array(repeating: 0, count: 4_096))
    while case let count = read(file, &part, part.count), count > 0 { bytes += part[..<count] }
    return String(decoding: bytes, as: UTF8.self)
  }
}
#endif
