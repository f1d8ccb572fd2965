internal import CCoroutineRuntime
import Glibc
import Synchronization

// The flight recorder: the last events of each scheduler, in a ring of its own (EventRing).
//
//   OFF --start--> ON --stop--> OFF, with the rings of the last recording until the next start
//
// Two want it: the program (`isWanted`), and traces that somebody reads (`traces`). The first one starts it, and it
// stops when the last one has stopped. A forked child inherits no trace.
//
// The kernel tells it by a table (Counters.swift has what it costs, and how a drain notices a start or a stop).
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
// under a lock. A scheduler for whose ring there is no memory is not recorded either. `missing` has the names of those
// without a ring.

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
    /// The workers and queues that have no ring, by their names; some of them, if there are many.
    var missing: Set<String> = []

    var allRings: [EventRing] { rings + (outside.map { [$0] } ?? []) }
  }

  /// The number of starts so far.
  static let number = Atomic<UInt32>(0)
  /// Whether ticks are nanoseconds of the clock.
  private static let usesClock = Atomic<Bool>(false)
  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var recording = Recording()
  /// Whether the program wants the recording; changed under `lock`.
  static let isWanted = Atomic<Bool>(false)
  // Sound because they are accessed under `lock`.
  /// The number of traces that are under way.
  nonisolated(unsafe) private static var traces = 0
  /// The process that they are under way in: nothing ends those of its parent in a forked child.
  nonisolated(unsafe) private static var owner = getpid()
  /// Held while a thread outside of any drain writes.
  private static let writing = SpinLock()

  private static var most: Int { 1_024 }
  private static var mostMissing: Int { 16 }

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

  static func start(bytes: Int, forTrace: Bool = false) {
    let stable = !hasStableTicks
    lock.withLock {
      forgetTracesOfParent()
      if forTrace { traces += 1 } else { isWanted.store(true, ordering: .relaxed) }
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
      if recording.outside == nil { recording.missing.insert("other threads") }
      Events.isOn.store(true, ordering: .releasing)
    }
  }

  static func stop(ofTrace: Bool = false) {
    lock.withLock {
      forgetTracesOfParent()
      if ofTrace { traces = max(0, traces - 1) } else { isWanted.store(false, ordering: .relaxed) }
      guard traces == 0, !isWanted.load(ordering: .relaxed) else { return }
      guard Events.isOn.exchange(false, ordering: .relaxed) else { return }
      recording.end = (ticks, Clock.now)
    }
  }

  /// Called under the lock.
  private static func forgetTracesOfParent() {
    if owner != getpid() { (owner, traces) = (getpid(), 0) }
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
        guard let ended else { return noteMissing(label) }
        recording.rings.remove(at: ended)
      }
      let made = EventRing(
        label,
        number: recording.nextNumber,
        bytes: recording.bytes,
        recording: number.load(ordering: .relaxed),
        start: recording.start.ticks
      )
      guard let made else { return noteMissing(label) }
      recording.rings.append(made)
      recording.nextNumber += 1
      return made
    }
  }

  /// Called under the lock; returns nil.
  private static func noteMissing(_ label: String) -> EventRing? {
    if recording.missing.count < mostMissing { recording.missing.insert(label) }
    return nil
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

// MARK: - The ring of one scheduler

// The last events of one scheduler, for the flight recorder. An event is two words. One thread at a
// time writes: the drain of the scheduler, whose threads follow each other by its inbox. Any thread reads, at any time.
//
// Event i is in slot i modulo the capacity. `written` is the number of complete events: it is a sequence number.
//
//   writer                                     reader
//   a. stores the words of slot (releasing)    1. loads n = written (acquiring)
//   b. stores written + 1 (releasing)          2. loads the words of the slots of n - capacity ..< n (acquiring)
//                                              3. loads m = written, and drops the events up to m - capacity
//
// Why an event that is kept is whole. The words of event i are overwritten by event i + capacity only, whose words the
// writer stores after it has stored `written` = i + capacity (step b of the event before). If the reader has loaded
// such a word in 2, then that load acquires the store in a, and so 3 sees m >= i + capacity, and event i is dropped.
// All events that 2 reads were complete by 1: their stores in a come before the store in b that 1 acquires. On x86-64
// these are plain loads and stores; on aarch64 they are load-acquires and store-releases, whose order the architecture
// keeps.
//
// How much is lost: the events that are written while the reader copies, and one more, from the oldest ones.

/// The last events of one scheduler.
final class EventRing: @unchecked Sendable {
  // Sound because of the proof above; everything else is constant, or atomic.

  /// An event as it is stored.
  struct Stored {
    let first: UInt64
    let second: UInt64
  }

  let label: String
  /// The number of the ring in its recording: its track.
  let number: Int
  /// The number of the recording that it belongs to.
  let recording: UInt32
  /// The ticks at the beginning of the recording.
  let start: UInt64
  private let slots: UnsafeMutablePointer<Atomic<UInt64>>
  private let mask: UInt64
  private let written = Atomic<UInt64>(0)

  static var bytesOfEvent: Int { 16 }

  /// Creates a ring of the largest power of two of events that `bytes` hold; returns nil without memory for it.
  init?(_ label: String, number: Int, bytes: Int, recording: UInt32, start: UInt64) {
    let wanted = max(64, bytes / Self.bytesOfEvent)
    let capacity = 1 << (Int.bitWidth - 1 - wanted.leadingZeroBitCount)
    // The pages of a large allocation have no memory before the first event is there.
    guard let memory = calloc(capacity, Self.bytesOfEvent) else { return nil }
    // Sound because an atomic word of zero is a word of zero.
    slots = memory.assumingMemoryBound(to: Atomic<UInt64>.self)
    mask = UInt64(capacity - 1)
    self.label = label
    self.number = number
    self.recording = recording
    self.start = start
  }

  deinit { free(slots) }

  var capacity: Int { Int(mask) + 1 }

  /// Adds an event; called by the writer.
  @inline(__always)
  func append(_ first: UInt64, _ second: UInt64) {
    let index = written.load(ordering: .relaxed)
    let slot = slots + 2 * Int(truncatingIfNeeded: index & mask)
    slot[0].store(first, ordering: .releasing)
    slot[1].store(second, ordering: .releasing)
    written.store(index &+ 1, ordering: .releasing)
  }

  /// The events that are in the ring, the oldest first, and the number of those before them; any thread.
  ///
  /// `betweenCopyAndCheck` is called between the steps 2 and 3, for tests.
  func read(_ betweenCopyAndCheck: () -> Void = {}) -> (events: [Stored], lost: UInt64) {
    let count = written.load(ordering: .acquiring)
    let first = count > mask ? count - mask - 1 : 0
    var copied: [Stored] = []
    copied.reserveCapacity(Int(count - first))
    for index in first..<count {
      let slot = slots + 2 * Int(truncatingIfNeeded: index & mask)
      copied.append(
        Stored(first: slot[0].load(ordering: .acquiring), second: slot[1].load(ordering: .acquiring))
      )
    }
    betweenCopyAndCheck()
    let later = written.load(ordering: .acquiring)
    let firstWhole = later > mask ? later - mask : 0
    if firstWhole > first { copied.removeFirst(Int(min(firstWhole - first, UInt64(copied.count)))) }
    return (copied, count - UInt64(copied.count))
  }
}

// MARK: - What programs see

extension CoroutineRuntime {
  /// Starts the flight recorder: from now on the last events of each worker and queue are kept.
  ///
  /// The events are: launch, run, wait with its kind, wake-up with its coroutine, yield, end, steal, end of a time
  /// slice, a timer that is a millisecond late or more, a batch of descriptor events; and that a part of a Swift Task
  /// can run, begins and ends here. Each takes 16 bytes, so a mebibyte keeps the last 65,536. The memory of a ring is
  /// used as it fills.
  ///
  /// While the recorder is off, it costs one tested branch in a launch and in what the driver does. While it is on,
  /// each switch goes by the driver. It starts and stops at any time: a busy worker or queue follows within 64
  /// switches. If it is on, the call only sets the folder; else the events of the last recording are dropped.
  /// The environment variable `COROUTINE_RECORD=1` starts it with the process. At most 1,024 workers and queues are
  /// recorded, and the ones that have ended make room for new ones.
  ///
  /// With a folder, ``recording()`` is also written to a file there at each of these:
  /// - a stall (``onStall(after:_:)``), also with the library's own handler;
  /// - a deadlock, while a handler is set (``onDeadlock(_:)``);
  /// - a fatal signal of any thread, also one that `kill` has sent and no handler takes. The thread waits until the
  ///   file is there, for five seconds at most. The process then ends as it would have ended.
  ///
  /// The file is `coroutine-PROCESS-stall-NUMBER.json`, or `-deadlock-` or `-signal-`; at most four for stalls, four
  /// for deadlocks, and one for a fatal signal. NUMBER is the first one that is free: a file that is there stays, and
  /// where a hundred are there, none is written. Each SIGUSR2 that writes a dump (``dumpOnSignal(_:)``) writes such a
  /// file as well, `-request-`, at most sixteen. A line on standard error has its path, or says why there is none. A
  /// thread of its own writes them, which lives as long as the process. `COROUTINE_RECORD=/a/folder` does this without
  /// code. A forked child writes no file before it calls this.
  ///
  /// Never suspends; any thread.
  /// - Parameters:
  ///   - bytesPerWorker: The size of each ring in bytes, rounded down to a power of two; at least 1,024.
  ///   - folder: The path of a folder that exists; nil for no files.
  public static func startRecording(bytesPerWorker: Int = 1 << 20, filesIn folder: String? = nil) {
    RecordingFiles.use(folder)
    Recorder.start(bytes: min(max(bytesPerWorker, 1_024), 1 << 32))
  }

  /// Stops the flight recorder; ``recording()`` still has its events.
  ///
  /// Never suspends; any thread. If it is off, the call has no effect. A trace of the diagnostics that is under way
  /// goes on; no more files are written then.
  public static func stopRecording() { Recorder.stop() }

  /// Starts the recorder for a trace, unless it is on; the folder and the program's own recording stay as they are.
  ///
  /// Each call needs one of ``endTrace()``.
  package static func beginTrace() { Recorder.start(bytes: 1 << 20, forTrace: true) }

  /// Stops the recorder, unless the program or another trace wants it.
  package static func endTrace() { Recorder.stop(ofTrace: true) }

  /// Whether the flight recorder is on.
  package static var isRecording: Bool { Events.isOn.load(ordering: .relaxed) }

  /// Returns the recorded events as a JSON document of trace events, which Perfetto (ui.perfetto.dev) and
  /// chrome://tracing open.
  ///
  /// It has a track for each worker and queue, with what ran there, and one for each coroutine and each Task, with its
  /// states. Parts of Tasks that an actor runs, and that only resume a Task, are on the worker's track alone. A
  /// coroutine that still lives is shown with its name at the moment (``CurrentCoroutine/name``). An
  /// arrow leads from each wake-up to the run that it caused. A track whose ring has overwritten events begins with a
  /// mark that has their number, and a mark names the workers and queues that have no ring. Without a recording the
  /// document has no events.
  ///
  /// Never suspends; any thread, at any time, also while the recorder is on. Takes time and memory in proportion to the
  /// number of events.
  public static func recording() -> [UInt8] { recording(named: true) }

  /// Returns what has been recorded in the last `time`, as ``recording()`` does.
  ///
  /// What has begun before is there from then on.
  package static func recording(ofLast time: Duration) -> [UInt8] { recording(named: true, ofLast: time) }

  /// The recording; the names of coroutines take locks, which a thread that a signal has stopped may have.
  static func recording(named: Bool, ofLast time: Duration? = nil) -> [UInt8] {
    let recording = Recorder.current
    let (events, losses) = RecordedEvent.all(of: recording)
    let end = (recording.end?.nanoseconds ?? 0) &- recording.start.nanoseconds
    let start = time.map { end - min(end, UInt64(max(0, $0.nanoseconds))) } ?? 0
    var names: [UInt32: String] = [:]
    if named { for job in LiveJobs.list() { names[UInt32(truncatingIfNeeded: job.id)] = job.shownName } }
    var trace = TraceWriter(events, from: start, end: end, losses: losses, names)
    return trace.write(recording.allRings, without: recording.missing)
  }
}

/// An event of a recording, with its time.
struct RecordedEvent {
  let kind: Events.Kind
  let track: Int
  /// Nanoseconds since the start.
  let time: UInt64
  let id: UInt32
  let argument: UInt32
  /// The launch site's file; of `site` only.
  var file = ""

  /// What a full ring has overwritten.
  struct Loss {
    let track: Int
    let count: UInt64
    /// The time of the oldest event that is left.
    let end: UInt64
  }

  /// The events of all rings in the order of their times, and what full rings have overwritten.
  ///
  /// Events of one ring keep their order.
  static func all(of recording: Recorder.Recording) -> (events: [RecordedEvent], losses: [Loss]) {
    guard let end = recording.end else { return ([], []) }
    let ticks = Double(end.ticks &- recording.start.ticks)
    let scale = ticks > 0 ? Double(end.nanoseconds - recording.start.nanoseconds) / ticks : 1
    var (events, losses): ([RecordedEvent], [Loss]) = ([], [])
    for ring in recording.allRings {
      var last: UInt64 = 0
      let (kept, lost) = ring.read()
      let own = kept.compactMap { RecordedEvent($0, ring.number, scale, &last) }
      if lost > 0 {
        // The first one may be a site, which has no time.
        let oldest = own.first { $0.time > 0 }?.time ?? end.nanoseconds &- recording.start.nanoseconds
        losses.append(Loss(track: ring.number, count: lost, end: oldest))
      }
      events += own
    }
    let sorted = events.enumerated().sorted { ($0.element.time, $0.offset) < ($1.element.time, $1.offset) }
    return (sorted.map(\.element), losses)
  }

  private init?(_ stored: EventRing.Stored, _ track: Int, _ scale: Double, _ last: inout UInt64) {
    guard let kind = Events.Kind(rawValue: UInt8(truncatingIfNeeded: stored.first)) else { return nil }
    self.kind = kind
    self.track = track
    id = UInt32(truncatingIfNeeded: stored.second)
    argument = UInt32(truncatingIfNeeded: stored.second >> 32)
    if kind == .site {
      let address = UInt(stored.first >> 8 & 0xFFFF_FFFF_FFFF)
      // Sound because it is the address of a literal's bytes, which the launch has passed (LaunchSite).
      if let start = UnsafePointer<UInt8>(bitPattern: address) {
        file = String(decoding: UnsafeBufferPointer(start: start, count: Int(stored.first >> 56)), as: UTF8.self)
      }
    } else {
      // A thread may read the counter a little earlier than the one whose work it continues.
      last = max(last, UInt64(Double(stored.first >> 8) * scale))
    }
    time = last
  }
}
