#if HTTP
import Coroutine
import CoroutineNet
import HTTPTypes

/// Answers the requests of one server of diagnostics.
struct DiagnosticsHandler: Sendable {
  /// Whether the host of a request must be an address or `localhost`.
  ///
  /// A page from elsewhere, in a browser on this machine, can have its own name lead to a loopback address, and would
  /// then be allowed to read the answers.
  let checksHost: Bool
  /// Held during a trace: its text may be large, so there is one at a time.
  private static let tracing = FairMutex()

  @Sendable func handle(_ request: borrowing ServerRequest, _ response: inout ServerResponse) throws {
    response.fields[.cacheControl] = "no-store"
    response.fields[.xContentTypeOptions] = "nosniff"
    guard request.method == .get || request.method == .head else {
      response.fields[.allow] = "GET, HEAD"
      response.status = .methodNotAllowed
      return try response.send("Diagnostics are read only: use GET or HEAD.\n")
    }
    if checksHost, let host = request.host, !Self.isAddress(host) {
      throw HTTPStatusError(.forbidden, "Use the address of this server, or localhost.\n")
    }
    let query = Query(request.query)
    switch request.path {
    case "/":
      response.fields[.contentSecurityPolicy] = "default-src 'none'; style-src 'unsafe-inline'"
      try response.send(DiagnosticsPage.text(), type: "text/html; charset=utf-8")
    case "/dump": try response.send(CoroutineRuntime.dump(.list))
    case "/stacks": try response.send(CoroutineRuntime.dump(.stacks))
    case "/descriptors": try response.send(CoroutineRuntime.dump(.descriptors))
    case "/deadlocks": try response.send(Self.deadlocks())
    case "/queues":
      try response.send(Self.lines(CoroutineRuntime.queues(most: 256).map(\.line), "No queue holds anything."))
    case "/ended":
      try response.send(Self.lines(CoroutineRuntime.ended.map(\.line), "No coroutine has ended since the start."))
    case "/coroutine":
      guard let id = query["id"].flatMap({ UInt64($0) }) else {
        throw HTTPStatusError(.badRequest, "The number of a coroutine is missing: /coroutine?id=17\n")
      }
      try response.send(Self.coroutine(id))
    case "/snapshot.json":
      response.fields[.contentType] = "application/json"
      try CoroutineRuntime.snapshotJSON(stacks: query["stacks"] == "1") { try response.write($0) }
    case "/metrics":
      try response.send(CoroutineRuntime.metricsText, type: "text/plain; version=0.0.4; charset=utf-8")
    case "/profile": try sendProfile(query["kind"] ?? "live", isHead: request.method == .head, &response)
    case "/trace":
      guard let seconds = Int(query["seconds"] ?? "1"), (0...60).contains(seconds) else {
        throw HTTPStatusError(.badRequest, "The number of seconds is 0 to 60.\n")
      }
      response.fields[.contentDisposition] = "attachment; filename=\"trace.json\""
      try response.send(trace(request.method == .head ? 0 : seconds), type: "application/json")
    default: throw HTTPStatusError(.notFound, "There is nothing here; / lists what there is.\n")
    }
  }

  private func sendProfile(_ kind: Substring, isHead: Bool, _ response: inout ServerResponse) throws {
    let kinds: [Substring: CoroutineRuntime.ProfileKind] = ["live": .live, "waiting": .waiting, "growth": .growth]
    guard let known = kinds[kind] else {
      throw HTTPStatusError(.badRequest, "The kind of a profile is live, waiting or growth.\n")
    }
    response.fields[.contentDisposition] = "attachment; filename=\"\(kind).pb\""
    response.fields[.contentType] = "application/octet-stream"
    // Each profile is what the next one of growth is compared with, and this one is not shown.
    if isHead { return try response.finish() }
    try response.send(CoroutineRuntime.profile(known))
  }

  /// Records for some seconds; a recording of the program's own goes on.
  private func trace(_ seconds: Int) throws -> [UInt8] {
    try Self.tracing.withLock {
      if seconds > 0 { CoroutineRuntime.beginTrace() }
      // A client that goes away cancels the wait.
      defer { if seconds > 0 { CoroutineRuntime.endTrace() } }
      try co_delay(.seconds(seconds))
      return seconds == 0 ? CoroutineRuntime.recording() : CoroutineRuntime.recording(ofLast: .seconds(seconds))
    }
  }

  /// Whether a host, perhaps with a port, is an address or `localhost`.
  static func isAddress(_ host: Substring) -> Bool {
    if host.hasPrefix("[") { return true }
    let name = host.prefix { $0 != ":" }
    return name.lowercased() == "localhost" || (try? SocketAddress.ipv4(String(name), port: 0)) != nil
  }

  /// The lines, or a sentence if there are none.
  private static func lines(_ lines: [String], _ none: String) -> String {
    lines.isEmpty ? none + "\n" : lines.joined(separator: "\n") + "\n"
  }

  // MARK: Deadlocks

  /// Each circle with its members and their stacks.
  static func deadlocks() -> String {
    let circles = CoroutineRuntime.deadlocks()
    if circles.isEmpty { return "No deadlock was found.\n" }
    var text = ""
    for circle in circles {
      text += line(circle) + "\n"
      // Each waits for the next one, and the last for the first.
      for (coroutine, holder) in zip(circle, circle.dropFirst() + circle.prefix(1)) {
        text += "  \(title(holder)) holds what \(title(coroutine)) wants: \(coroutine.wait?.text ?? "nothing known")\n"
      }
      for coroutine in circle { text += "\n" + described(coroutine) }
      text += "\n"
    }
    return text
  }

  // MARK: One coroutine

  static func coroutine(_ id: UInt64) throws -> String {
    let all = CoroutineRuntime.snapshot(stacks: true).coroutines
    guard let coroutine = all.first(where: { $0.id == id }) else {
      if let ended = CoroutineRuntime.ended(id) { return ended.line + "\n" }
      throw HTTPStatusError(.notFound, "Coroutine #\(id) has ended, or there was none.\n")
    }
    var text = described(coroutine)
    let others = all.filter { $0.wait?.owner == id }
    if !others.isEmpty { text += "\nIt holds up:\n" }
    for other in others { text += "  \(title(other)), which waits \(other.wait?.text ?? "")\n" }
    return text
  }

  /// A coroutine with its wait and its frames.
  private static func described(_ coroutine: CoroutineRuntime.Snapshot.Coroutine) -> String {
    var text = "\(title(coroutine)), launched at \(coroutine.launchSite.asWord), on \(coroutine.scheduler.asWord)\n"
    text +=
      "  \(state(coroutine)) for \(Int64(coroutine.since / .milliseconds(1))) ms\(coroutine.isCancelled ? ", cancelled" : "")\n"
    for frame in CoroutineRuntime.frames(at: coroutine.stack) {
      text += "    \(frame.symbol?.asLine ?? "0x" + String(frame.address, radix: 16))\n"
    }
    return text
  }

  private static func state(_ coroutine: CoroutineRuntime.Snapshot.Coroutine) -> String {
    switch coroutine.state {
    case .notStarted: "not started"
    case .ready: "ready"
    case .running: "running"
    case .waiting: "waits: \(coroutine.wait?.text ?? "for nothing"),"
    }
  }

  /// A circle in one line, as a dump has it.
  static func line(_ circle: [CoroutineRuntime.Snapshot.Coroutine]) -> String {
    let titles = circle.map(title)
    return "deadlock: " + titles[0] + " waits for "
      + (titles.dropFirst() + titles.prefix(1)).joined(separator: ", which waits for ")
  }

  private static func title(_ coroutine: CoroutineRuntime.Snapshot.Coroutine) -> String {
    "#\(coroutine.id)" + (coroutine.name.map { " \"\($0.asName)\"" } ?? "")
  }

  /// The parameters of a query, none of which needs an escape.
  private struct Query {
    private var values: [Substring: Substring] = [:]

    init(_ query: Substring?) {
      for part in (query ?? "").split(separator: "&") {
        let pair = part.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
        values[pair[0]] = pair.count > 1 ? pair[1] : ""
      }
    }

    subscript(_ name: Substring) -> Substring? { values[name] }
  }
}
#endif
