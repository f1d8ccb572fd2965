import Dispatch
import Glibc
import Synchronization

/// The list of live coroutines.
///
/// It is taken under each scheduler's live lock, which keeps every listed job alive, and reads the rest of the records while
/// their owners go on: a line may mix two moments of a coroutine that runs, never of one that is parked.
enum Dump {
  static func text(of only: [Scheduler]? = nil) -> String {
    var lines: [(id: UInt64, text: String)] = []
    let now = Clock.now
    let visit: (Scheduler) -> Void = { scheduler in
      let time = scheduler.simulation?.now ?? now
      scheduler.liveLock.lock()
      var job = scheduler.firstLive
      while let current = job {
        lines.append((current.pointee.id, line(current, scheduler, time)))
        job = current.pointee.nextLive
      }
      scheduler.liveLock.unlock()
    }
    if let only { only.forEach(visit) } else { SchedulerRegistry.forEach(visit) }
    let header = "\(lines.count) live coroutine\(lines.count == 1 ? "" : "s")\n"
    return lines.sorted { $0.id < $1.id }.reduce(into: header) { $0 += $1.text + "\n" }
  }

  private static func line(_ job: JobRef, _ scheduler: Scheduler, _ now: UInt64) -> String {
    let name = job.pointee.name.map { " \"\(String(cString: $0))\"" } ?? ""
    return "#\(job.pointee.id)\(name) \(state(job, now)) on \(scheduler.label), launched at \(job.pointee.place.description)"
  }

  private static func state(_ job: JobRef, _ now: UInt64) -> String {
    let cancelled = job.pointee.flags.load(ordering: .relaxed) & JobFlags.cancelled != 0 ? ", cancelled" : ""
    let kind = WaitKind(rawValue: job.pointee.waitKind.load(ordering: .relaxed)) ?? .nothing
    guard job.pointee.wait.load(ordering: .acquiring) & 0xFF == 1 else {
      return (kind == .start ? "not started" : "ready or running") + cancelled
    }
    let since = job.pointee.waitingSince.load(ordering: .relaxed)
    let age = since == 0 || since > now ? "" : " for \(milliseconds(now - since))"
    return "waiting for \(kind.phrase)\(age)\(cancelled)"
  }

  private static func milliseconds(_ nanoseconds: UInt64) -> String { "\(nanoseconds / 1_000_000) ms" }
}

extension WaitKind {
  /// After "waiting for".
  var phrase: String {
    switch self {
    case .start, .nothing: "its turn"
    case .callback: "a callback"
    case .delay: "a delay"
    case .job: "a job"
    case .promise: "a promise"
    case .children: "its children"
    case .several: "several"
    case .blocking: "blocking work"
    case .readable: "a readable descriptor"
    case .writable: "a writable descriptor"
    case .lock: "a lock"
    case .channel: "a channel"
    }
  }
}

extension CoroutineRuntime {
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var signalSource: (any DispatchSourceSignal)?
  private static let signalLock = SpinLock()

  /// From now on SIGUSR2 writes ``dump()`` to standard error.
  public static func dumpOnSignal() {
    signalLock.withLock {
      guard signalSource == nil else { return }
      signal(SIGUSR2, SIG_IGN)
      let source = DispatchSource.makeSignalSource(signal: SIGUSR2, queue: DispatchQueue(label: "coroutine.dump"))
      source.setEventHandler { writeToStandardError(dump()) }
      source.activate()
      signalSource = source
    }
  }
}
