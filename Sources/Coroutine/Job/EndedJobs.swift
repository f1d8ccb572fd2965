internal import CCoroutine
import Synchronization

// The last coroutines that have ended, for reports.
//
//   OFF --begin: the first report that could show them--> ON, for ever
//
// While OFF, a worker tests one byte in place of the two words that it would test otherwise (`Liveness.duties`); an end
// is about 16 instructions longer. While ON, it copies a few words into a ring, and retains the name.
//
// The rings. There are `rings` of them, and the address of the home scheduler chooses one, so that workers that end
// coroutines at the same time seldom wait for each other. Each keeps the last `most`: so the last `most` of the process
// are among them, whichever schedulers have ended them, also after the end of a scheduler. Their memory is bounded, and
// used as they fill.
//
// Invariants
//  1. A ring is accessed under its lock. What it gives up is released after the lock was left.
//  2. `isOn` is set before all schedulers are marked, and a scheduler reads it after it has entered the registry. So
//     each scheduler is marked: by `begin`, or by itself.
//  3. Jobs of simulated worlds are not kept: worlds use the same numbers again, and their times are not the process's.

/// A coroutine that has ended.
struct EndedJob {
  let id: UInt64
  let name: JobName?
  let launchSite: LaunchSite
  var ending: JobEnding
  /// About when, by the clock of the process.
  let time: UInt64
  /// The type of the error that it has failed with.
  var failure: (any Error.Type)?
  /// Whether it has not ended: its supervisor has restarted the actor.
  var isRestarted = false
}

enum EndedJobs {
  /// The number of ended coroutines that reports show.
  static var most: Int { 256 }
  private static var rings: Int { 16 }

  private final class Ring: @unchecked Sendable {
    // Sound because the fields are accessed under the lock.
    let lock = ThreadLock()
    @exclusivity(unchecked) var entries: [EndedJob] = []
    /// The index of the oldest entry of a full ring.
    @exclusivity(unchecked) var oldest = 0
  }

  /// Whether ends are kept.
  static let isOn = Atomic<Bool>(false)

  private static let all = (0..<rings).map { _ in Ring() }

  /// The ring of the jobs of a scheduler.
  private static func ring(of scheduler: Scheduler) -> Ring {
    let address = UInt(bitPattern: Unmanaged.passUnretained(scheduler).toOpaque())
    return all[Int((address >> 5 ^ address >> 9) % UInt(rings))]
  }

  /// Keeps ends from now on.
  ///
  /// Any thread; only the first call has an effect.
  static func begin() {
    if isOn.load(ordering: .relaxed) || isOn.exchange(true, ordering: .sequentiallyConsistent) { return }
    SchedulerRegistry.visitAll { $0.noteEnds() }
  }

  /// Keeps a job that ends; called at its end, by a scheduler that is marked.
  static func note(_ job: JobRef, _ ending: JobEnding, of scheduler: Scheduler) {
    if scheduler.host.controlsOrder { return }
    let now = Carrier.current?.pointee.now ?? 0
    let entry = job.handle._withUnsafeGuaranteedRef { handle in
      EndedJob(
        id: handle.id,
        name: handle.nameForReports,
        launchSite: job.label.pointee.launchSite,
        ending: ending,
        time: now != 0 ? now : Clock.now
      )
    }
    keep(entry, in: ring(of: scheduler))
  }

  private static func keep(_ entry: EndedJob, in ring: Ring) {
    let former: EndedJob? = ring.lock.withLock {
      guard ring.entries.count == most else {
        ring.entries.append(entry)
        return nil
      }
      let former = ring.entries[ring.oldest]
      ring.entries[ring.oldest] = entry
      ring.oldest = (ring.oldest + 1) % most
      return former
    }
    _ = consume former
  }

  /// Keeps the end of an actor's life, after which its supervisor restarts the actor under the same number.
  static func noteRestart(of job: AnyJob, _ outcome: Result<Void, any Error>) {
    let home = job.record.pointee.home.takeUnretainedValue()
    guard isOn.load(ordering: .relaxed), !home.host.controlsOrder else { return }
    var entry = EndedJob(
      id: job.id,
      name: job.nameForReports,
      launchSite: job.record.pointee.label.launchSite,
      ending: .succeeded,
      time: Clock.now,
      isRestarted: true
    )
    if case .failure(let error) = outcome { (entry.ending, entry.failure) = (.failed, type(of: error)) }
    keep(entry, in: ring(of: home))
  }

  /// Notes the error of a job that has just been kept as failed.
  static func note(_ failure: any Error, of job: JobRef) {
    let id = job.label.pointee.id
    let ring = ring(of: job.pointee.home.takeUnretainedValue())
    ring.lock.lock()
    let index = ring.entries.lastIndex { $0.id == id }
    if let index { ring.entries[index].failure = type(of: failure) }
    ring.lock.unlock()
  }

  /// The last ones, the latest first; any thread.
  static var latest: [EndedJob] {
    var found: [EndedJob] = []
    for index in 0..<rings {
      let ring = all[index]
      found += ring.lock.withLock { ring.entries }
    }
    found.sort { ($1.time, $1.id) < ($0.time, $0.id) }
    return Array(found.prefix(most))
  }

  /// The one with this number, if it is among the last ones of its schedulers.
  static func find(_ id: UInt64) -> EndedJob? {
    guard isOn.load(ordering: .relaxed) else { return nil }
    for index in 0..<rings {
      let ring = all[index]
      if let found = ring.lock.withLock({ ring.entries.last { $0.id == id } }) { return found }
    }
    return nil
  }
}

extension EndedJob {
  /// The time since its end.
  var age: Duration {
    let now = Clock.now
    // The end may be later than this look at the clock: another thread has noted it.
    return .nanoseconds(Int64(clamping: now > time ? now - time : 0))
  }

  /// `which ended 9 s ago`, or `which failed with BadRequestError 9 s ago`.
  var clause: String { "which \(verb) \(Self.seconds(age)) ago" }

  /// What has become of it.
  var verb: String {
    let end =
      switch ending {
      case .succeeded: "ended"
      case .cancelled: "was cancelled"
      case .failed: "failed" + (failure.map { " with \(asWord($0))" } ?? "")
      }
    return isRestarted ? "\(end) and was restarted" : end
  }

  /// A time in a unit that fits.
  static func seconds(_ time: Duration) -> String {
    let milliseconds = max(0, time.nanoseconds / 1_000_000)
    return milliseconds < 10_000 ? "\(milliseconds) ms" : "\(milliseconds / 1_000) s"
  }
}
