// The deadlines that have passed, counted by the place of the call: an operator asks which ones do.
//
// Counted where the error is thrown, so a deadline that does not pass costs nothing. A program has few such places;
// from the 65th on they are counted together.

enum PassedDeadlines {
  private static var most: Int { 64 }

  private struct Key: Hashable {
    let file: UnsafePointer<UInt8>
    let line: UInt32
  }

  private static let lock = ThreadLock()
  // Sound because they are accessed under `lock`.
  nonisolated(unsafe) private static var names: [Key: String] = [:]
  nonisolated(unsafe) private static var counts: [String: UInt64] = [:]

  nonisolated(unsafe) private static var limits: [String: Duration] = [:]

  static func note(_ site: LaunchSite, _ limit: Duration) {
    let key = Key(file: site.file, line: site.line)
    lock.withLock {
      let known = names[key] ?? (names.count < most ? site.description : "others")
      if names.count < most { names[key] = known }
      counts[known, default: 0] += 1
      if known != "others" { limits[known] = limit }
    }
  }

  /// The number of those that have passed, by `file:line`.
  static var bySite: [String: UInt64] { lock.withLock { counts } }
  /// The time that the last of each place has allowed.
  static var lastLimits: [String: Duration] { lock.withLock { limits } }
}

extension CoroutineRuntime {
  /// The time that the last deadline allowed which has passed at each place, by `file:line`.
  package static func passedLimits() -> [String: Duration] { PassedDeadlines.lastLimits }
}

extension TimeoutError {
  /// The error of a deadline that has passed now, which is counted.
  static func passed(after duration: Duration, at site: LaunchSite?) -> TimeoutError {
    if let site { PassedDeadlines.note(site, duration) }
    return TimeoutError(after: duration, at: site)
  }
}
