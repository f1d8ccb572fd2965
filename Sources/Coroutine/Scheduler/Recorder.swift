internal import CCoroutine
import Glibc
import Synchronization

// The flight recorder: the last events of each scheduler, in a ring of its own (EventRing.swift).
//
//   OFF --start--> ON --stop--> OFF, with the rings of the last recording until the next start
//
// Off, it costs one tested branch in each launch, each resumption by the driver, and each wake-up that takes the long
// way. Direct switches and direct wake-ups test nothing: a recording makes them take the way by the driver, as a sample
// does (Scheduler+Samples.swift). The driver then takes the next job as a switch would (resumeRecorded), without its
// own tests between two jobs. A drain notices a start or a stop at its next read of the clock, so after 64
// switches.
//
// An event is two words:
//
//   first     the kind, 8 bits; above it the ticks since the start, 56 bits
//   second    the number of the coroutine, its lower 32 bits; above it an argument, 32 bits
//
// except for `site`: its first word has the address of the launch site's file name, 48 bits, and its length, 8 bits,
// in place of the ticks. It follows the event of its launch in the same ring, and its argument is the line.
//
// The number is enough to tell the coroutines of one recording apart: a ring has far fewer than 2^32 events.
//
// Time. A tick is one of the processor's time stamp counter, which is cheaper to read than the clock. Where the kernel
// does not use it for its own clock, because the processors' counters differ, a tick is a nanosecond of the clock.
//
// The rings. A drain makes its ring when it first notices the recording, and `rings` holds all of them, also after
// their schedulers have ended. Above `most` rings the oldest one of an ended scheduler goes; if none has ended, further
// schedulers are not recorded. Threads outside of any drain share one ring, under a lock.

enum Recorder {
  enum Event: UInt8 {
    case launch = 1
    case site, run, park, yield, end, wake, steal, sliceEnd, lateTimer, poll, leave
  }

  /// The state between a start and the next one; accessed under `lock`.
  struct Recording {
    var rings: [EventRing] = []
    var nextNumber = 1
    var bytes = 1 << 20
    var start: (ticks: UInt64, nanoseconds: UInt64) = (0, 0)
    /// When the recording was stopped; nil while it is on.
    var end: (ticks: UInt64, nanoseconds: UInt64)?
    /// The ring of the threads outside of any drain.
    var outside: EventRing?
  }

  static let isOn = Atomic<Bool>(false)
  /// The number of starts so far.
  static let number = Atomic<UInt32>(0)
  /// Whether ticks are nanoseconds of the clock.
  private static let usesClock = Atomic<Bool>(false)
  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var recording = Recording()
  /// Held while a thread outside of any drain writes.
  private static let writing = SpinLock()

  private static var most: Int { 1_024 }

  static func start(bytes: Int) {
    let stable = !hasStableTicks
    lock.withLock {
      if isOn.load(ordering: .relaxed) { return }
      usesClock.store(stable, ordering: .relaxed)
      let number = number.wrappingAdd(1, ordering: .relaxed).newValue
      recording = Recording()
      recording.bytes = bytes
      recording.start = (ticks, Clock.now)
      recording.outside = EventRing(
        "other threads",
        number: 0,
        bytes: bytes,
        recording: number,
        start: recording.start.ticks
      )
      isOn.store(true, ordering: .releasing)
    }
  }

  static func stop() {
    lock.withLock {
      guard isOn.exchange(false, ordering: .relaxed) else { return }
      recording.end = (ticks, Clock.now)
    }
  }

  /// The recording, with its end now if it is on.
  static var current: Recording {
    var copy = lock.withLock { recording }
    if copy.end == nil { copy.end = (ticks, Clock.now) }
    return copy
  }

  /// Makes the ring of a scheduler for the current recording; called by its drain.
  static func makeRing(_ label: String) -> EventRing? {
    lock.withLock {
      if recording.rings.count >= most {
        guard let ended = recording.rings.firstIndex(where: { $0.hasEnded.load(ordering: .relaxed) }) else {
          return nil
        }
        recording.rings.remove(at: ended)
      }
      let made = EventRing(
        label,
        number: recording.nextNumber,
        bytes: recording.bytes,
        recording: number.load(ordering: .relaxed),
        start: recording.start.ticks
      )
      if let made {
        recording.rings.append(made)
        recording.nextNumber += 1
      }
      return made
    }
  }

  /// The time in ticks.
  @inline(__always)
  static var ticks: UInt64 { usesClock.load(ordering: .relaxed) ? Clock.now : cco_ticks() }

  /// Whether the kernel takes its own time from the counter.
  private static var hasStableTicks: Bool {
    #if arch(x86_64)
    guard let file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re") else {
      return false
    }
    defer { fclose(file) }
    var text = [CChar](repeating: 0, count: 32)
    return fgets(&text, 32, file) != nil && strcmp(text, "tsc\n") == 0
    #else
    return true
    #endif
  }

  // MARK: Events

  @inline(__always)
  static func append(_ event: Event, _ id: UInt64, _ argument: UInt64 = 0, to ring: EventRing) {
    append(event, id, argument, to: ring, at: ticks)
  }

  @inline(__always)
  static func append(_ event: Event, _ id: UInt64, _ argument: UInt64 = 0, to ring: EventRing, at ticks: UInt64) {
    ring.append(UInt64(event.rawValue) | (ticks &- ring.start) << 8, id & 0xFFFF_FFFF | argument << 32)
  }

  /// Records an event of the calling thread, in the ring of its drain if it has one.
  @inline(never)
  static func note(_ event: Event, _ id: UInt64, _ argument: UInt64 = 0) {
    if let ring = Carrier.current?.pointee.ring?._withUnsafeGuaranteedRef({ $0 }) {
      append(event, id, argument, to: ring)
    } else {
      outside { append(event, id, argument, to: $0) }
    }
  }

  /// Records a launch and its place.
  @inline(never)
  static func noteLaunch(_ job: JobRef) {
    let label = job.label.pointee
    let by = Carrier.current?.pointee.job?.label.pointee.id ?? 0
    let site = UInt64(UInt(bitPattern: label.file)) & 0xFFFF_FFFF_FFFF
    let first = UInt64(Event.site.rawValue) | site << 8 | UInt64(min(label.file_length, 255)) << 56
    let second = label.id & 0xFFFF_FFFF | UInt64(label.line) << 32
    func write(_ ring: EventRing) {
      append(.launch, label.id, by, to: ring)
      ring.append(first, second)
    }
    if let ring = Carrier.current?.pointee.ring?._withUnsafeGuaranteedRef({ $0 }) {
      write(ring)
    } else {
      outside(write)
    }
  }

  /// Records a wake-up by the coroutine that the calling thread runs, if it runs one.
  @inline(never)
  static func noteWake(of job: JobRef) {
    note(.wake, job.label.pointee.id, Carrier.current?.pointee.job?.label.pointee.id ?? 0)
  }

  /// Records that an immediate start begins; called by the starter.
  static func noteStart(of job: JobRef) {
    if isOn.load(ordering: .relaxed) { note(.run, job.label.pointee.id, 1) }
  }

  /// Records that an immediate start has come back; called by the starter, which holds the job.
  static func noteReturn(of job: JobRef, _ leaving: UInt) {
    guard isOn.load(ordering: .relaxed) else { return }
    note(event(leaving), job.label.pointee.id, leaving == 0 ? UInt64(job.pointee.waitKind.load(ordering: .relaxed)) : 0)
  }

  /// The event of a job that has left its stack, by what it has left to do.
  static func event(_ leaving: UInt) -> Event {
    leaving == 0 ? .park : leaving & 1 != 0 ? .end : leaving & Carrier.leavingEntry != 0 ? .leave : .yield
  }

  private static func outside(_ write: (EventRing) -> Void) {
    guard let ring = lock.withLock({ recording.outside }) else { return }
    writing.lock()
    write(ring)
    writing.unlock()
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
    if Recorder.isOn.load(ordering: .relaxed) != (carrier.pointee.watch & Samples.recording != 0) {
      changeRecording(carrier)
    }
  }

  @inline(never)
  private func changeRecording(_ carrier: UnsafeMutablePointer<Carrier>) {
    guard Recorder.isOn.load(ordering: .acquiring) else {
      carrier.pointee.watch &= ~Samples.recording
      carrier.pointee.wakes = carrier.pointee.scheduler
      carrier.pointee.ring = nil
      return
    }
    if ring?.recording != Recorder.number.load(ordering: .relaxed) { ring = Recorder.makeRing(label) }
    guard let ring else { return }
    carrier.pointee.watch |= Samples.recording
    carrier.pointee.wakes = nil
    carrier.pointee.ring = Unmanaged.passUnretained(ring)
  }

  /// Counts the jobs that this worker has stolen from another one; called by the drain.
  func noteSteal(of count: Int) {
    counters.add(UInt64(count), to: .steals)
    // Under the lock of another worker's queue, so not into the ring that has a lock.
    guard count > 0, let ring = Carrier.current?.pointee.ring else { return }
    ring._withUnsafeGuaranteedRef { Recorder.append(.steal, 0, UInt64(count), to: $0) }
  }

  /// Resumes a job, then the jobs that a switch could go to directly, up to `most` in all, and records their runs;
  /// returns the number of resumes.
  ///
  /// A run begins at the time at which the one before it has ended: one read of the ticks for each switch.
  func resumeRecorded(
    _ first: JobRef,
    _ carrier: UnsafeMutablePointer<Carrier>,
    in ring: EventRing,
    atMost most: Int
  ) -> Int {
    var (job, count, ticks) = (first, 0, Recorder.ticks)
    while true {
      ticks = resumeRecorded(job, carrier, in: ring, at: ticks)
      count += 1
      // Below zero: it is time to poll.
      guard count < most, carrier.pointee.switchesLeft == 0, let next = readyQueue.takeRunnable() else { return count }
      job = next
    }
  }

  /// Resumes a job at `ticks`, and returns the ticks at its end.
  @inline(__always)
  private func resumeRecorded(
    _ job: JobRef,
    _ carrier: UnsafeMutablePointer<Carrier>,
    in ring: EventRing,
    at ticks: UInt64
  ) -> UInt64 {
    let id = job.label.pointee.id
    let before = job.pointee.wait.load(ordering: .relaxed)
    // After its run a job of a worker may run elsewhere, or have ended: it is kept until its wait is read. The job of a
    // queue that waits is resumed by this drain only.
    let object = readyQueue.pointee.workerPool == nil ? nil : job.handle.retain()
    Recorder.append(.run, id, before >> 8 == 0 ? 1 : 0, to: ring, at: ticks)
    let leaving = resume(job, carrier)
    let end = Recorder.ticks
    if leaving == 0 {
      let word = job.pointee.wait.load(ordering: .acquiring)
      let kind = job.pointee.waitKind.load(ordering: .acquiring)
      // The wait in which it has parked, unless it has begun another one elsewhere since.
      let isKnown = word >> 8 == (before >> 8) &+ 1 && job.pointee.wait.load(ordering: .relaxed) >> 8 == word >> 8
      Recorder.append(.park, id, isKnown ? UInt64(kind) : 0, to: ring, at: end)
    } else {
      Recorder.append(Recorder.event(leaving), id, to: ring, at: end)
    }
    object?.release()
    return end
  }
}
