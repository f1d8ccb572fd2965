internal import CCoroutine

/// What coroutines have used of their stacks, by launch site (Sites.c in the C core).
enum StackUses {
  typealias StackUse = CoroutineRuntime.Snapshot.StackUse

  /// The sites of the process, by their names; none in a world, or for some schedulers.
  ///
  /// Equal names are one site: a literal may have several addresses.
  static func list(of only: [Scheduler]? = nil) -> [StackUse] {
    guard only == nil, !LiveJobs.isInWorld else { return [] }
    var uses: [String: StackUse] = [:]
    for index in 0..<UInt32(CCO_MOST_SITES) {
      var site = cco_site_use()
      guard cco_site_at(index, &site) else { continue }
      let label = cco_label(id: 0, name: nil, file: site.file, file_length: site.file_length, line: site.line)
      let use = StackUse(
        launchSite: label.launchSite.description,
        deepest: site.deepest,
        measured: Int(site.ended),
        stackBytes: site.stack
      )
      uses[use.launchSite] = uses[use.launchSite].map { merge($0, use) } ?? use
    }
    return uses.values.sorted { $0.launchSite < $1.launchSite }
  }

  private static func merge(_ one: StackUse, _ other: StackUse) -> StackUse {
    StackUse(
      launchSite: one.launchSite,
      deepest: max(one.deepest, other.deepest),
      measured: one.measured + other.measured,
      stackBytes: max(one.stackBytes, other.stackBytes)
    )
  }

  /// The line of a dump.
  static func line(_ use: StackUse) -> String {
    """
    stacks of coroutines launched at \(use.launchSite): \(use.deepest >> 10) KiB used at most by \(use.measured) measured, \
    the next has \(use.stackBytes >> 10) KiB
    """
  }
}
