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
    ("/snapshot.json?stacks=1", "every coroutine with its return addresses, for tools"),
    ("/metrics", "the counters, for Prometheus"),
    ("/profile?kind=live", "the stacks of all coroutines, for go tool pprof"),
    ("/profile?kind=waiting", "the same, by the time that they have waited"),
    ("/profile?kind=growth", "the same, by their growth since the profile before"),
    ("/trace?seconds=1", "what happens in the next second, for ui.perfetto.dev"),
  ]

  static func text() -> String {
    let metrics = CoroutineRuntime.metrics
    let program = (CommandLine.arguments.first ?? "").split(separator: "/").last ?? "a program"
    let title = "Coroutines of \(escaped(String(program).asWord)), process \(getpid())"
    return """
      <!doctype html>
      <html lang="en">
      <head>
      <meta charset="utf-8">
      <meta name="viewport" content="width=device-width, initial-scale=1">
      <title>\(title)</title>
      <style>\(style)</style>
      </head>
      <body>
      <h1>\(title)</h1>
      \(deadlocks())<div class="columns">
      <section><h2>Coroutines</h2>\(table(coroutines(metrics)))</section>
      <section><h2>Waits</h2>\(table(waits(metrics)))</section>
      <section><h2>Since the start</h2>\(table(counters(metrics)))</section>
      <section><h2>Resources</h2>\(table(resources(metrics)))</section>
      </div>
      <h2>More</h2>
      \(table(links.map { ("<a href=\"\($0.path)\">\($0.path)</a>", $0.what) }, isText: true))
      <h2>Where they are</h2>
      <pre>\(stacks())</pre>
      </body>
      </html>

      """
  }

  // MARK: Parts

  private static func deadlocks() -> String {
    let circles = CoroutineRuntime.deadlocks()
    if circles.isEmpty { return "" }
    let lines = circles.map { "<li>\(escaped(DiagnosticsHandler.line($0)))</li>" }
    return "<div class=\"alert\"><a href=\"/deadlocks\">Deadlocks</a><ul>\(lines.joined())</ul></div>\n"
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

  private static func counters(_ metrics: CoroutineRuntime.Metrics) -> [(String, String)] {
    [
      ("launched", "\(metrics.launched)"), ("ended", "\(metrics.ended)"), ("failed", "\(metrics.failed)"),
      ("cancelled", "\(metrics.cancelled)"), ("switches", "\(metrics.switches)"), ("steals", "\(metrics.steals)"),
      ("stalls", "\(metrics.stalls)"), ("wake to run", quantiles(metrics.wakeToRun)),
      ("run length", quantiles(metrics.runLength)), ("timers late by", quantiles(metrics.timerLateness)),
    ]
  }

  private static func resources(_ metrics: CoroutineRuntime.Metrics) -> [(String, String)] {
    [
      ("spare workers made", "\(metrics.spareWorkers)"), ("stacks in use", "\(metrics.stacksInUse)"),
      ("stacks pooled", "\(metrics.stacksPooled)"), ("memory of stacks", "\(metrics.stackBytes / 1_024) KiB"),
      ("blocking threads", "\(metrics.blockingThreads)"), ("waiting for one", "\(metrics.blockingWaiting)"),
      ("descriptors", "\(metrics.descriptors)"),
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
    return escaped(String(shown)) + (shown.endIndex == text.endIndex ? "" : "…\n<a href=\"/stacks\">all of them</a>")
  }

  // MARK: HTML

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

  private static let style = """
    body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#222;background:#fff}
    h1{font-size:1.4em}h2{font-size:1.05em;margin:1.4em 0 .4em}
    .columns{display:flex;flex-wrap:wrap;gap:0 3em}
    table{border-collapse:collapse}th{text-align:left;font-weight:normal;padding:.15em 1.5em .15em 0}
    td{text-align:right;font-variant-numeric:tabular-nums}td.text{text-align:left;color:#555}
    pre{background:#f4f4f4;padding:1em;overflow-x:auto;font-size:12px}
    .alert{border-left:4px solid #c00;background:#fee;padding:.6em 1em}.alert ul{margin:.3em 0;padding-left:1.2em}
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#222}
    td.text{color:#aaa}a{color:#8bf}.alert{background:#411}}
    """
}
#endif
