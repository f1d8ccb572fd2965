import Synchronization

// What schedulers tell a recorder (Inspect/Recorder.swift), which the kernel does not name: it tests one flag, and
// calls what the recorder has put into a table.
//
// While nothing is recorded, that is one tested branch in each launch, each resumption by the driver, and each wake-up
// that takes the long way. Direct switches and direct wake-ups test nothing: during a recording they take a way that
// exists already and is slower, because a condition that they test anyway fails. The budget of switches is zero, so a
// switch goes to the driver; and the carrier's `wakes` is nil, so a wake-up does not find the ready queue. The driver
// then takes the next job as a switch would (`resumeRecorded`). A drain notices a start or a stop at its next read of
// the clock, so after 64 switches.

enum Events {
  enum Kind: UInt8 {
    case launch = 1
    case site, run, park, yield, end, wake, steal, sliceEnd, lateTimer, poll, leave
  }

  struct Listener {
    /// Records an event of the calling thread, about a job or about none.
    let note: (Kind, JobRef?, _ argument: UInt64) -> Void
    /// Makes the carrier of a drain begin or end to record.
    let follow: (Scheduler, UnsafeMutablePointer<Carrier>) -> Void
    /// Resumes a job, then the jobs that a switch could go to directly, up to `most` in all, and records their runs;
    /// returns the number of resumes.
    let resume: (Scheduler, JobRef, UnsafeMutablePointer<Carrier>, _ ring: AnyObject, _ most: Int) -> Int
  }

  /// Whether events are recorded; set by the recorder.
  static let isOn = Atomic<Bool>(false)
  // Sound because it is written once, before the first scheduler is there (`applyEnvironment`).
  nonisolated(unsafe) static var listener: Listener?

  @inline(__always)
  static func note(_ kind: Kind, _ job: JobRef? = nil, _ argument: UInt64 = 0) {
    if isOn.load(ordering: .relaxed) { tell(kind, job, argument) }
  }

  @inline(never)
  private static func tell(_ kind: Kind, _ job: JobRef?, _ argument: UInt64) { listener?.note(kind, job, argument) }

  /// Notes that an immediate start has come back; called by the starter, which holds the job.
  static func noteReturn(of job: JobRef, _ leaving: UInt) {
    note(kind(of: leaving), job, leaving == 0 ? UInt64(job.pointee.waitKind.load(ordering: .relaxed)) : 0)
  }

  /// The event of a job that has left its stack, by what it has left to do.
  static func kind(of leaving: UInt) -> Kind {
    leaving == 0 ? .park : leaving & 1 != 0 ? .end : leaving & Carrier.leavingArrival != 0 ? .leave : .yield
  }
}

extension Carrier {
  /// Makes the carrier of an immediate start record into the ring of the carrier that it interrupts.
  mutating func followRecorder(of outer: UnsafeMutablePointer<Carrier>?) {
    guard let outer, let ring = outer.pointee.ring else { return }
    self.ring = ring
    wakes = nil
  }
}

extension Scheduler {
  /// Follows a start or a stop of the recorder; called by the drain where it reads the clock.
  @inline(__always)
  func followRecorder(_ carrier: UnsafeMutablePointer<Carrier>) {
    if Events.isOn.load(ordering: .relaxed) != (carrier.pointee.ring != nil) {
      Events.listener?.follow(self, carrier)
    }
  }

  /// Resumes a job without a budget, then as many of the jobs that a switch could go to directly as the budget had, and
  /// records their runs.
  @inline(never)
  func resumeRecorded(_ job: JobRef, _ carrier: UnsafeMutablePointer<Carrier>) {
    guard let listener = Events.listener, let ring = carrier.pointee.ring else { return }
    let left = carrier.pointee.switchesLeft
    carrier.pointee.grant(0)
    // The drain has counted the first one.
    let others = ring._withUnsafeGuaranteedRef { listener.resume(self, job, carrier, $0, 1 + max(0, left)) } - 1
    carrier.pointee.granted &+= others
    // Below zero: the job has yielded because it is time to poll.
    carrier.pointee.grant(carrier.pointee.switchesLeft == 0 ? left - others : 0)
  }

  /// Counts the jobs that this worker has stolen from another one; called by the drain.
  func noteSteal(of count: Int) {
    counters.add(UInt64(count), to: .steals)
    // Under the lock of another worker's queue, so only into the drain's own ring, which has no lock.
    if count > 0, Carrier.current?.pointee.ring != nil { Events.note(.steal, nil, UInt64(count)) }
  }
}
