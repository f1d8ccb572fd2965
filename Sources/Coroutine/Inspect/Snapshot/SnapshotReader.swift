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

  /// The value of one job, without the names of others.
  static func value(of inspected: InspectedJob) -> CoroutineRuntime.Snapshot.Coroutine {
    var reader = SnapshotReader(JobNames())
    return reader.coroutine(StackReader.Entry(job: inspected))
  }

  /// The value of one job that was inspected.
  mutating func coroutine(_ entry: StackReader.Entry) -> CoroutineRuntime.Snapshot.Coroutine {
    let (inspected, job) = (entry.job, entry.job.job)
    return CoroutineRuntime.Snapshot.Coroutine(
      id: job.id,
      name: job.name,
      launchSite: launchSite(of: job),
      state: inspected.state,
      wait: inspected.isWaiting ? wait(of: inspected) : nil,
      scheduler: inspected.worker,
      since: .nanoseconds(Int64(clamping: inspected.nanosecondsInState)),
      isCancelled: inspected.isCancelled,
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

  private mutating func wait(of inspected: InspectedJob) -> CoroutineRuntime.Snapshot.Wait {
    if let lastWait, let source = inspected.source, lastWait.source === source, lastWait.kind == inspected.kind,
      inspected.kind != .select
    {
      return lastWait.wait
    }
    let wait = CoroutineRuntime.Snapshot.Wait(
      kind: inspected.kind.name,
      object: inspected.object,
      owner: inspected.owner(names),
      text: inspected.waitText(names)
    )
    if let source = inspected.source { lastWait = (source, inspected.kind, wait) }
    return wait
  }
}
