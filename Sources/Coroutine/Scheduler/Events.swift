import Synchronization

// What schedulers tell a recorder (Inspect/Recorder.swift), which the kernel does not name: it tests one flag, and calls
// what the recorder has put into a table.
//
// While nothing is recorded, that is one tested branch in each launch, each resumption by the driver, and each wake-up
// that takes the long way. Direct switches and direct wake-ups test nothing: a recording makes them take the way by the
// driver, as a sample does (Scheduler+Samples.swift). The driver then takes the next job as a switch would
// (`resumeRecorded`). A drain notices a start or a stop at its next read of the clock, so after 64 switches.

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
    /// See `Scheduler.resumeRecorded`.
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
    leaving == 0 ? .park : leaving & 1 != 0 ? .end : leaving & Carrier.leavingEntry != 0 ? .leave : .yield
  }
}

extension Carrier {
  /// Makes the carrier of an immediate start record into the ring of the carrier that it interrupts.
  mutating func followRecorder(of outer: UnsafeMutablePointer<Carrier>?) {
    guard let outer, let ring = outer.pointee.ring else { return }
    self.ring = ring
    watch = Samples.recording
    wakes = nil
  }
}

extension Scheduler {
  /// Follows a start or a stop of the recorder; called by the drain where it reads the clock.
  @inline(__always)
  func followRecorder(_ carrier: UnsafeMutablePointer<Carrier>) {
    if Events.isOn.load(ordering: .relaxed) != (carrier.pointee.watch & Samples.recording != 0) {
      Events.listener?.follow(self, carrier)
    }
  }

  /// Resumes a job, then the jobs that a switch could go to directly, up to `most` in all, and records their runs;
  /// returns the number of resumes.
  func resumeRecorded(
    _ job: JobRef,
    _ carrier: UnsafeMutablePointer<Carrier>,
    in ring: AnyObject,
    atMost most: Int
  ) -> Int {
    Events.listener?.resume(self, job, carrier, ring, most) ?? 0
  }

  /// Counts the jobs that this worker has stolen from another one; called by the drain.
  func noteSteal(of count: Int) {
    counters.add(UInt64(count), to: .steals)
    // Under the lock of another worker's queue, so only into the drain's own ring, which has no lock.
    if count > 0, Carrier.current?.pointee.ring != nil { Events.note(.steal, nil, UInt64(count)) }
  }
}
