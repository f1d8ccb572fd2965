internal import CCoroutine
import Dispatch
import Synchronization

#if canImport(Glibc)
import Glibc
#else
import Musl
#endif

/// The list of live coroutines.
///
/// It is taken under each scheduler's live lock, which keeps every listed job alive, and reads the rest of the records while
/// their owners go on: a line may mix two moments of a coroutine that runs, never of one that is parked.
enum Dump {
  /// What is copied under the lock; it is turned into text outside.
  private struct Entry {
    let id: UInt64
    let name: String?
    let place: LaunchPlace
    let kind: WaitKind
    let isWaiting: Bool
    let isCancelled: Bool
    let since: UInt64

    init(_ job: JobRef) {
      id = job.pointee.label.id
      name = job.pointee.label.name.map { String(cString: $0) }
      place = job.pointee.label.place
      kind = WaitKind(rawValue: job.pointee.waitKind.load(ordering: .relaxed)) ?? .nothing
      isWaiting = job.pointee.wait.load(ordering: .acquiring) & 0xFF == 1
      isCancelled = job.pointee.flags.load(ordering: .relaxed) & JobFlags.cancelled != 0
      since = job.pointee.waitingSince.load(ordering: .relaxed)
    }
  }

  static func text(of only: [Scheduler]? = nil) -> String {
    var found: [(entry: Entry, label: String, now: UInt64)] = []
    let now = Clock.now
    let visit: (Scheduler) -> Void = { scheduler in
      let time = scheduler.simulation?.now ?? now
      scheduler.liveLock.lock()
      var job = scheduler.firstLive
      while let current = job {
        found.append((Entry(current), scheduler.label, time))
        job = current.pointee.nextLive
      }
      scheduler.liveLock.unlock()
    }
    if let only { for scheduler in only { visit(scheduler) } } else { SchedulerRegistry.visitAll(visit) }
    found.sort { $0.entry.id < $1.entry.id }
    let header = "\(found.count) live coroutine\(found.count == 1 ? "" : "s")\n"
    return found.reduce(into: header) { $0 += line($1.entry, $1.label, $1.now) + "\n" }
  }

  private static func line(_ entry: Entry, _ label: String, _ now: UInt64) -> String {
    let name = entry.name.map { " \"\($0)\"" } ?? ""
    return "#\(entry.id)\(name) \(state(entry, now)) on \(label), launched at \(entry.place.description)"
  }

  private static func state(_ entry: Entry, _ now: UInt64) -> String {
    let cancelled = entry.isCancelled ? ", cancelled" : ""
    guard entry.isWaiting else { return (entry.kind == .start ? "not started" : "ready or running") + cancelled }
    let age = entry.since == 0 || entry.since > now ? "" : " for \(milliseconds(now - entry.since))"
    return "waiting for \(entry.kind.phrase)\(age)\(cancelled)"
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
    case .permits: "permits"
    case .condition: "a condition"
    case .group: "a count to reach zero"
    case .answer: "an answer"
    case .decision: "its supervisor"
    }
  }
}

extension CoroutineRuntime {
  // Sound because it is read and written under `signalLock`.
  nonisolated(unsafe) private static var signalSource: (any DispatchSourceRead)?
  private static let signalLock = SpinLock()

  /// From now on SIGUSR2 writes ``dump()`` to standard error, also while every queue is stuck.
  ///
  /// Signals that come while one is being written are answered by one more dump.
  public static func dumpOnSignal() {
    signalLock.withLock {
      guard signalSource == nil else { return }
      let descriptor = cco_notice_signal(SIGUSR2)
      if descriptor < 0 { misuse("CoroutineRuntime.dumpOnSignal: no descriptor is left (errno \(errno))") }
      // A queue of its own: one of the program's may be what the dump is wanted for.
      let queue = DispatchQueue(label: "coroutine.dump", qos: .userInitiated)
      let source = DispatchSource.makeReadSource(fileDescriptor: descriptor, queue: queue)
      source.setEventHandler {
        var count: UInt64 = 0
        // Before the dump: a signal that comes while it is written asks for another.
        _ = read(descriptor, &count, MemoryLayout<UInt64>.size)
        writeToStandardError(dump())
      }
      source.activate()
      signalSource = source
    }
  }
}
