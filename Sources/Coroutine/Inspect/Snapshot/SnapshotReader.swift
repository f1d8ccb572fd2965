/// Makes the values of a snapshot, and keeps texts that many coroutines share.
struct SnapshotReader {
  private let names: JobNames
  private var launchSites: [LaunchSiteKey: String] = [:]
  /// The text of the wait before, with its source: neighbours often wait for the same object.
  private var lastWait: (source: AnyObject, kind: WaitKind, wait: CoroutineRuntime.Snapshot.Wait)?

  /// The file, by the address of its literal, and the line.
  private struct LaunchSiteKey: Hashable {
    let file: UnsafePointer<UInt8>
    let line: UInt32
  }

  init(_ names: JobNames) { self.names = names }

  /// The value of one job that was inspected.
  mutating func coroutine(_ entry: StackReader.Entry) -> CoroutineRuntime.Snapshot.Coroutine {
    let (dumped, job) = (entry.dumped, entry.dumped.job)
    return CoroutineRuntime.Snapshot.Coroutine(
      id: job.id,
      name: job.name,
      launchSite: launchSite(of: job),
      state: dumped.snapshotState,
      wait: dumped.isWaiting ? wait(of: dumped) : nil,
      scheduler: dumped.worker,
      since: .nanoseconds(Int64(clamping: dumped.nanosecondsInState)),
      isCancelled: dumped.isCancelled,
      isTorn: entry.isTorn,
      stack: entry.stack
    )
  }

  private mutating func launchSite(of job: AnyJob) -> String {
    let site = job.record.label.pointee.launchSite
    let key = LaunchSiteKey(file: site.file, line: site.line)
    if let known = launchSites[key] { return known }
    let text = site.description
    launchSites[key] = text
    return text
  }

  private mutating func wait(of dumped: DumpedJob) -> CoroutineRuntime.Snapshot.Wait {
    if let lastWait, let source = dumped.source, lastWait.source === source, lastWait.kind == dumped.kind,
      dumped.kind != .select
    {
      return lastWait.wait
    }
    let wait = CoroutineRuntime.Snapshot.Wait(
      kind: dumped.kind.name,
      object: dumped.object,
      owner: dumped.owner(names),
      text: dumped.waitText(names)
    )
    if let source = dumped.source { lastWait = (source, dumped.kind, wait) }
    return wait
  }
}
