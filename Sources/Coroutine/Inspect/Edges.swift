// What connects coroutines in a report: which of them is this library's own, where the bodies of co_blocking are, and
// how many wait for one of them, directly or through others.

/// This library, as reports know it.
enum Library {
  static let modules: Set<String> = [
    "Coroutine", "CoroutineNet", "CoroutineHTTP", "CoroutineNIO", "CoroutinePostgres", "CoroutineWork",
    "CoroutineLogging", "CoroutineMetrics", "CoroutineServiceLifecycle", "CoroutineTesting",
  ]

  /// Whether a place, as `Module/File.swift:12`, is in this library.
  static func contains(_ launchSite: String) -> Bool {
    launchSite.hasPrefix("Coroutine") && modules.contains(String(launchSite.prefix { $0 != "/" }))
  }
}

// MARK: - Bodies of co_blocking

/// The pools of threads for blocking calls, which Inspect does not name.
enum BlockingPositions {
  /// Where a body is.
  enum Position: Sendable {
    /// The kernel's number of the thread that runs it.
    case thread(Int32)
    /// The number of bodies that are to start before it.
    case queue(before: Int)
  }

  /// The positions by the numbers of the coroutines that wait; called on any thread.
  typealias Source = @Sendable () -> [UInt64: Position]

  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var sources: [Source] = []

  /// Adds a pool, for ever.
  static func add(_ source: @escaping Source) { lock.withLock { sources.append(source) } }

  /// The positions in words.
  static func now() -> [UInt64: String] {
    var positions: [UInt64: String] = [:]
    for source in lock.withLock({ sources }) {
      for (id, position) in source() { positions[id] = text(position) }
    }
    return positions
  }

  private static func text(_ position: Position) -> String {
    switch position {
    case .thread(let number):
      "on thread \(number)" + (CoroutineRuntime.Stall.Activity(of: number).map { ", \($0)" } ?? "")
    case .queue(let before): "in the queue, \(before) before it"
    }
  }
}

// MARK: - Who holds up others

/// The coroutines for which others wait: directly, as for the owner of a lock, or through others.
///
/// Each coroutine waits for one other at most, so the edges are a forest, and some circles, which are deadlocks and are
/// reported as such. Made from the values of a snapshot: a lock for which no coroutine waits is not known here.
struct HeldUp {
  /// The waits for one coroutine, in words, with their numbers.
  private struct Direct {
    var owner: UInt64
    var counts: [String: Int] = [:]
  }

  private var owners: [UInt64: UInt64] = [:]
  private var direct: [UInt64: Direct] = [:]
  private static var mostKinds: Int { 8 }
  private static var mostLines: Int { 8 }

  mutating func add(_ entry: CoroutineRuntime.Snapshot.Coroutine) {
    guard let wait = entry.wait, let owner = wait.owner else { return }
    owners[entry.id] = owner
    let known = direct[owner]?.counts.count ?? 0
    let text = known < Self.mostKinds ? Self.thing(wait.text) : "others"
    direct[owner, default: Direct(owner: owner)].counts[text, default: 0] += 1
  }

  /// `for a lock (FairMutex 0x55c4)`: without the owner, and without the name of a job that is the owner itself.
  private static func thing(_ text: String) -> String {
    if let held = text.firstRange(of: ", held by ") { return text[..<held.lowerBound] + ")" }
    if text.hasPrefix("for a job") { return "for its end" }
    if text.hasPrefix("for an answer") { return "for an answer" }
    return text
  }

  /// The number of coroutines that wait for each, directly or through others.
  private func totals() -> [UInt64: Int] {
    var (totals, open): ([UInt64: Int], [UInt64: Int]) = ([:], [:])
    for owner in owners.values { open[owner, default: 0] += 1 }
    var ready = owners.keys.filter { open[$0] == nil }
    while let id = ready.popLast() {
      guard let owner = owners[id] else { continue }
      totals[owner, default: 0] += 1 + totals[id, default: 0]
      if let left = open[owner], left > 1 {
        open[owner] = left - 1
      } else {
        open[owner] = nil
        ready.append(owner)
      }
    }
    return totals
  }

  /// A line for each coroutine that holds up two or more and waits for no other itself, the one with most first.
  ///
  /// `#17 "a" holds up 41: 29 waiting for a lock (FairMutex 0x55c4); it is waiting for a promise (…) for 3 ms, …`
  func lines(of only: [Scheduler]?) -> [String] {
    let found = totals().filter { $0.value > 1 && owners[$0.key] == nil }
      .sorted { ($1.value, $0.key) < ($0.value, $1.key) }.prefix(Self.mostLines)
    guard !found.isEmpty else { return [] }
    let wanted = Set(found.map(\.key))
    var holders: [UInt64: AnyJob] = [:]
    let jobs = LiveJobs.list(of: only)
    for job in jobs where wanted.contains(job.id) { holders[job.id] = job }
    let names = JobNames(jobs)
    return found.map { id, total in
      let waits = (direct[id]?.counts ?? [:]).sorted { ($1.value, $0.key) < ($0.value, $1.key) }
        .map { "\($0.value) waiting \($0.key)" }.joined(separator: ", ")
      guard let job = holders[id] else { return "#\(id) holds up \(total): \(waits); it has ended" }
      let holder = SnapshotReader.value(of: InspectedJob(job), names)
      return "\(holder.title) holds up \(total): \(waits); it is \(holder.stateText), launched at \(holder.launchSite)"
    }
  }
}
