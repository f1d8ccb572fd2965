internal import CCoroutine
import Glibc
import Synchronization

// The flight recorder: the last events of each scheduler, in a ring of its own (EventRing.swift).
//
//   OFF --start--> ON --stop--> OFF, with the rings of the last recording until the next start
//
// The kernel tells it by a table (Events.swift has what it costs, and how a drain notices a start or a stop).
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
// their schedulers have ended. Above `most` rings the oldest one of an ended scheduler goes, which is one that nothing
// else refers to; if none has ended, further schedulers are not recorded. Threads outside of any drain share one ring,
// under a lock.

enum Recorder {
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

  /// Puts the recorder where the kernel finds it; called before the first scheduler is there.
  static func listen() {
    Events.listener = Events.Listener(
      note: { kind, job, argument in Recorder.note(kind, job, argument) },
      follow: { scheduler, carrier in scheduler.changeRecording(carrier) },
      resume: { scheduler, job, carrier, ring, most in
        scheduler.resumeInRing(job, carrier, EventRing.of(ring), atMost: most)
      }
    )
  }

  static func start(bytes: Int) {
    let stable = !hasStableTicks
    lock.withLock {
      if Events.isOn.load(ordering: .relaxed) { return }
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
      Events.isOn.store(true, ordering: .releasing)
    }
  }

  static func stop() {
    lock.withLock {
      guard Events.isOn.exchange(false, ordering: .relaxed) else { return }
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
        // Its scheduler has released it, which is in no drain then.
        let ended = recording.rings.indices.first { isKnownUniquelyReferenced(&recording.rings[$0]) }
        guard let ended else { return nil }
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
  static func append(_ event: Events.Kind, _ id: UInt64, _ argument: UInt64 = 0, to ring: EventRing) {
    append(event, id, argument, to: ring, at: ticks)
  }

  @inline(__always)
  static func append(_ event: Events.Kind, _ id: UInt64, _ argument: UInt64 = 0, to ring: EventRing, at ticks: UInt64) {
    ring.append(UInt64(event.rawValue) | (ticks &- ring.start) << 8, id & 0xFFFF_FFFF | argument << 32)
  }

  /// Records an event of the calling thread, in the ring of its drain if it has one.
  private static func note(_ event: Events.Kind, _ job: JobRef?, _ argument: UInt64) {
    let (carrier, id) = (Carrier.current, job?.label.pointee.id ?? 0)
    let caller = carrier?.pointee.job?.label.pointee.id ?? 0
    func write(_ ring: EventRing) {
      append(event, id, event == .launch || event == .wake ? caller : argument, to: ring)
      if event == .launch, let job { appendSite(of: job, to: ring) }
    }
    if let ring = carrier?.pointee.ring {
      ring._withUnsafeGuaranteedRef { write(EventRing.of($0)) }
    } else {
      outside(write)
    }
  }

  /// Records the place of a launch.
  private static func appendSite(of job: JobRef, to ring: EventRing) {
    let label = job.label.pointee
    let site = UInt64(UInt(bitPattern: label.file)) & 0xFFFF_FFFF_FFFF
    let first = UInt64(Events.Kind.site.rawValue) | site << 8 | UInt64(min(label.file_length, 255)) << 56
    ring.append(first, label.id & 0xFFFF_FFFF | UInt64(label.line) << 32)
  }

  private static func outside(_ write: (EventRing) -> Void) {
    guard let ring = lock.withLock({ recording.outside }) else { return }
    writing.lock()
    write(ring)
    writing.unlock()
  }
}

extension EventRing {
  /// The ring that a scheduler or a carrier keeps without its type.
  @inline(__always)
  fileprivate static func of(_ ring: AnyObject) -> EventRing { unsafeDowncast(ring, to: EventRing.self) }
}

extension Scheduler {
  /// Makes the carrier of a drain follow a start or a stop.
  fileprivate func changeRecording(_ carrier: UnsafeMutablePointer<Carrier>) {
    guard Events.isOn.load(ordering: .acquiring) else {
      carrier.pointee.wakes = carrier.pointee.scheduler
      carrier.pointee.ring = nil
      return
    }
    let known = ring.map(EventRing.of)
    if known?.recording != Recorder.number.load(ordering: .relaxed) { ring = Recorder.makeRing(label) }
    guard let ring else { return }
    carrier.pointee.wakes = nil
    carrier.pointee.ring = Unmanaged.passUnretained(ring)
  }

  /// See `Events.Listener.resume`.
  ///
  /// A run begins at the time at which the one before it has ended: one read of the ticks for each switch.
  fileprivate func resumeInRing(
    _ first: JobRef,
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ ring: EventRing,
    atMost most: Int
  ) -> Int {
    var (job, count, ticks) = (first, 0, Recorder.ticks)
    while true {
      ticks = resume(job, carrier, in: ring, at: ticks)
      count += 1
      // Below zero: it is time to poll.
      guard count < most, carrier.pointee.switchesLeft == 0, let next = readyQueue.takeRunnable() else { return count }
      job = next
    }
  }

  /// Resumes a job at `ticks`, and returns the ticks at its end.
  @inline(__always)
  private func resume(
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
      Recorder.append(Events.kind(of: leaving), id, to: ring, at: end)
    }
    object?.release()
    return end
  }
}
