import Synchronization

// What a scheduler counts: words that one writer at a time increases, and that any thread adds up
// (SchedulerRegistry.totals). No two schedulers share a word, so counting costs no cache miss.
//
//   word                                    its writer
//   launched, ended, failed, cancelled      the holder of the scheduler's live lock
//   switches, steals, wakeToRun, runLength  the drain; of a worker's steals the thief's drain
//   timers, timerLateness                   the holder of the scheduler's timer lock
//   stalls, spareWorkers, spareShortages,   any thread, by read-modify-write; in the words of the ended schedulers only
//   restarts
//
// Invariants
//  1. A word never decreases. A writer increases it by a load and a store: it is the only writer, and two writers
//     that follow each other are ordered by the lock, or by the inbox (Inbox.swift).
//  2. A coroutine is counted in `launched` before it is counted in `ended`, perhaps by another scheduler, and in
//     `failed` or `cancelled` before that. The stores release, and `totals` loads all words of `ended` before it loads
//     any of `launched`. So it never finds more ends than launches.
//  3. The memory of the words is freed after the scheduler has left the registry.
//
// Why no sum decreases while a scheduler ends. Its words are added to those of the ended schedulers, and it is removed
// from the registry, in one critical section of the registry's lock. `totals` adds up all words in one such section,
// without a reference to a scheduler: a scheduler in its deinit is still in the registry, and its words are in memory
// until its deinit has left that lock. So each sum contains each scheduler once. Nothing is counted in its deinit.
// The word itself: a scheduler whose last drain has ended is released, and the release of the last reference orders
// the drain's stores before the deinit.
//
// The switches. No switch counts itself. A carrier counts its budget down at each switch (`Carrier.switchesLeft`), and
// the driver knows what it has granted. The difference is the number of switches since the driver has last published
// them, which it does whenever it reads the clock, and before it goes idle. So a reader sees them up to 64 switches
// late, and after that sees all of them.

/// The words of one scheduler.
// Sound because the words are atomic, and their memory lives as long as the scheduler.
struct CounterWords: @unchecked Sendable {
  /// The kinds of words.
  ///
  /// The last three are the first buckets of histograms; a word with the sum follows the buckets.
  enum Kind: Int {
    case launched, ended, failed, cancelled, switches, steals, timers, stalls, spareWorkers, spareShortages
    case restarts
    case wakeToRun = 16
    case runLength = 40
    case timerLateness = 64
  }

  static var count: Int { 88 }

  private let words: UnsafeMutablePointer<Atomic<UInt64>>

  init() {
    words = .allocate(capacity: Self.count)
    for index in 0..<Self.count { (words + index).initialize(to: Atomic(0)) }
  }

  func free() {
    words.deinitialize(count: Self.count)
    words.deallocate()
  }

  /// Increases a word; called by its writer.
  @inline(__always)
  func add(_ count: UInt64 = 1, to kind: Kind) { add(count, at: kind.rawValue) }

  @inline(__always)
  private func add(_ count: UInt64, at index: Int) {
    words[index].store(words[index].load(ordering: .relaxed) &+ count, ordering: .releasing)
  }

  /// Increases a word that has several writers.
  func addShared(_ count: UInt64 = 1, to kind: Kind) {
    _ = words[kind.rawValue].wrappingAdd(count, ordering: .relaxed)
  }

  /// Adds a duration to a histogram, `count` times; called by its writer.
  func note(_ nanoseconds: UInt64, in histogram: Kind, times count: UInt64 = 1) {
    add(nanoseconds &* count, at: histogram.rawValue + HistogramScale.buckets)
    add(count, at: histogram.rawValue + HistogramScale.bucket(of: nanoseconds))
  }

  /// Loads a word.
  subscript(kind: Kind) -> UInt64 { words[kind.rawValue].load(ordering: .relaxed) }

  /// Adds some words to `sums`.
  func add(_ range: Range<Int>, to sums: inout [UInt64]) {
    for index in range { sums[index] &+= words[index].load(ordering: .acquiring) }
  }

  /// Adds all words to those of the ended schedulers, which several threads increase.
  func add(to others: CounterWords) {
    for index in 0..<Self.count {
      _ = others.words[index].wrappingAdd(words[index].load(ordering: .relaxed), ordering: .releasing)
    }
  }
}

/// The scale of the histograms: 1, 2 and 5 in each decade from 1 µs to 10 s, and one bucket for what is longer.
enum HistogramScale {
  /// The number of buckets with an upper bound.
  static var bounds: Int { 22 }
  /// The number of buckets.
  static var buckets: Int { bounds + 1 }

  /// The upper bound of a bucket in ns, which belongs to it.
  static func bound(_ bucket: Int) -> UInt64 {
    var power: UInt64 = 1_000
    for _ in 0..<bucket / 3 { power *= 10 }
    return power * (bucket % 3 == 0 ? 1 : bucket % 3 == 1 ? 2 : 5)
  }

  /// The bucket of a duration.
  static func bucket(of nanoseconds: UInt64) -> Int {
    var (decade, power) = (0, UInt64(1_000))
    while decade < 7, nanoseconds > power &* 5 {
      decade += 1
      power &*= 10
    }
    if decade == 7 { return nanoseconds <= power ? bounds - 1 : bounds }
    return decade * 3 + (nanoseconds <= power ? 0 : nanoseconds <= power &* 2 ? 1 : 2)
  }
}

// MARK: - Samples

// Samples for the histograms of CoroutineRuntime.metrics. They are taken where the driver knows the time already, so a
// switch, a wake-up and a launch pay nothing.
//
//   histogram      sample
//   runLength      whenever the driver reads its clock: the mean of the runs since it last did, once for each of them
//   wakeToRun      the first job that the driver takes after such a read, if it was launched or has yielded: the time
//                  since then; and of eight messages that wake an idle scheduler, one: the time until the drain begins
//   timerLateness  one timer in `Samples.timers`: from its deadline to the time for which the drain fires its timers
//
// The time of a message. A message to an idle scheduler starts a drain, which is a call of the kernel or of Dispatch;
// one read of the clock in eight of them does not show. Only the thread that has moved the inbox out of `idle`
// (Inbox.swift) uses `wakeUps` and `wokenAt`, until it submits the drain, which uses them then. By the inbox's word it
// has acquired what the last drain did before it went idle.
//
// No sample depends on how the jobs of a world are chosen, or changes that: worlds have no drains and so take only the
// samples of timers, in their own time.

enum Samples {
  /// One in so many timers is measured.
  static var timers: UInt64 { 64 }
  /// One in so many messages that wake an idle scheduler is measured.
  static var wakeUps: UInt { 8 }
}

extension Scheduler {
  /// Adds the switches since the last call to the counters, and returns their number.
  ///
  /// Called by the driver, wherever it reads the clock, and before it goes idle.
  @inline(__always) @discardableResult
  func publishSwitches(_ carrier: UnsafeMutablePointer<Carrier>) -> UInt64 {
    let count = UInt64(truncatingIfNeeded: carrier.pointee.granted &- carrier.pointee.switchesLeft)
    carrier.pointee.granted = carrier.pointee.switchesLeft
    counters.add(count, to: .switches)
    return count
  }

  /// Reads the clock, and publishes what the carrier has counted.
  func readClock(_ carrier: UnsafeMutablePointer<Carrier>) {
    let runs = publishSwitches(carrier)
    followRecorder(carrier)
    let now = clock
    if runs > 0 { counters.note((now &- carrier.pointee.now) / runs, in: .runLength, times: runs) }
    carrier.pointee.now = now
    lastClockRead.store(now, ordering: .relaxed)
  }

  /// Notes how long a job that the driver has taken was ready; the driver has just read the clock.
  func noteReady(_ job: JobRef, _ now: UInt64) {
    let kind = job.pointee.waitKind.load(ordering: .relaxed)
    guard kind == WaitKind.start.rawValue || kind == WaitKind.ready.rawValue else { return }
    let since = job.pointee.waitingSince.load(ordering: .relaxed)
    // 0: it was launched lazily, and started by another thread.
    if since != 0 { counters.note(now > since ? now - since : 0, in: .wakeToRun) }
  }

  /// Remembers the time of a message that has woken this scheduler, if it is measured.
  ///
  /// Called by the thread that has moved the inbox out of `idle`, before it submits the drain.
  func noteWakeUp() {
    wakeUps &+= 1
    if wakeUps % Samples.wakeUps == 0, !host.controlsOrder { wokenAt = clock }
  }

  /// Notes how long after the message that has woken this scheduler a drain begins, if that is measured.
  @inline(__always)
  func noteDrain(_ now: UInt64) {
    if wokenAt == 0 { return }
    counters.note(now > wokenAt ? now - wokenAt : 0, in: .wakeToRun)
    wokenAt = 0
  }

  /// Counts a timer that fires at `now`, and measures how late it is if it is time to; called under the timers' lock.
  func noteTimer(_ deadline: UInt64, _ now: UInt64) {
    if counters[.timers] % Samples.timers == 0 {
      counters.note(now > deadline ? now - deadline : 0, in: .timerLateness)
    }
    counters.add(to: .timers)
    if Events.isOn.load(ordering: .relaxed) { noteLateTimer(deadline) }
  }

  /// Records a timer that is late by a millisecond or more.
  private func noteLateTimer(_ deadline: UInt64) {
    let now = clock
    guard now > deadline, now - deadline >= 1_000_000 else { return }
    Events.note(.lateTimer, nil, min((now - deadline) / 1_000, UInt64(UInt32.max)))
  }

  /// Resumes a job in a world, whose carriers have no budget.
  func resumeInWorld(_ job: JobRef, _ carrier: UnsafeMutablePointer<Carrier>) {
    carrier.pointee.granted += 1
    publishSwitches(carrier)
    followRecorder(carrier)
    if carrier.pointee.ring == nil { resume(job, carrier) } else { resumeRecorded(job, carrier) }
  }
}

// MARK: - Events, for a recorder

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
    /// Of a Swift job, with the number of its Task as the argument: it was enqueued, begins, and has come back.
    case taskReady, taskRun, taskLeave
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
