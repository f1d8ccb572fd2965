public import CCoroutineRuntime

/// Marks a step for tests: in a simulated world (the product CoroutineTesting) other coroutines may run here.
///
/// Outside a world, and outside a coroutine, it does nothing, and costs one load. In a world it may suspend: the world
/// chooses which coroutine continues, as at a wait, and resumes this one later. Coroutines of the same serial queue do
/// not run here, and none does while this one is in the body of a ``ThreadMutex``. Never throws, and does not check
/// cancellation. Any thread.
@inlinable
public func co_point() {
  if cco_has_worlds() { SimulatedPoint.reach() }
}

/// Returns whether the fault of this name happens now.
///
/// In a simulated world (the product CoroutineTesting) the world draws the result. Outside a world the result is false,
/// and the call costs one load. Never suspends; any thread.
///
/// ```swift
/// if co_fault("wal.sync") { throw DiskFull() }
/// ```
@inlinable
public func co_fault(_ name: StaticString) -> Bool {
  cco_has_worlds() && SimulatedPoint.draw(name)
}

@usableFromInline
enum SimulatedPoint {
  @usableFromInline
  static func reach() {
    guard let carrier = Carrier.current, let job = carrier.pointee.job, let scheduler = carrier.pointee.scheduler else {
      return
    }
    // No other coroutine may run under a thread's lock, so that is no step.
    if LockCheck.holdsThreadMutex { return }
    guard scheduler._withUnsafeGuaranteedRef({ $0.host.mustGiveWay(atPointOf: job) }) else { return }
    carrier.pointee.grant(0)
    Carrier.giveWay(carrier, job)
  }

  @usableFromInline
  static func draw(_ name: StaticString) -> Bool {
    guard let scheduler = Carrier.current?.pointee.scheduler else { return false }
    return scheduler._withUnsafeGuaranteedRef { $0.host.chooseFault(name) }
  }
}

// MARK: - What a step touches

/// The objects that the coroutines of a world touch.
///
/// A search uses them to leave out equivalent orders.
///
/// A coroutine touches each object that it has waited for, and the one that it is about to wait for, because a later
/// step may release what an earlier one has acquired. Objects are identified by their addresses. The addresses are
/// valid within one run, and a search compares steps of one run only.
///
/// A use that never waits (`trySend`, `fulfill`, `isFinished`) is known only when it happens: too late for the
/// schedules in which the step comes later. So the first such use of an object makes its step depend on every other
/// step. After that the object belongs to the coroutine's footprint, as if it had waited for the object.
///
/// A step of a Task touches the executor on which it continues, which is known before, itself, and each Task that it
/// resumes. Those are known only when it happens too, but a Task's number is the same in all runs with the same
/// beginning, so a search can keep them with the step (`tasks`).
package struct Footprints {
  private struct Footprint {
    var objects: Set<UInt> = []
    /// The executor on which a Task continues; 0 for none.
    var executor: UInt = 0
    /// Whether the next step depends on every other step.
    var isUniversal = false
  }

  private var all: [UInt64: Footprint] = [:]
  /// The footprint of the current step.
  private var step = Footprint()
  /// The numbers of the Tasks that the current step touches; empty if it is none of a Task.
  private(set) var tasks: [UInt64] = []

  package init() {}

  /// Whether the current step depends on every other step.
  package var isUniversal: Bool {
    get { step.isUniversal }
    set { step.isUniversal = newValue }
  }

  /// Records that the coroutine is about to wait for `source`; 0 means an unknown source.
  mutating func arrive(_ id: UInt64, _ source: UInt) {
    all[id, default: Footprint()].isUniversal = source == 0
    if source != 0 { all[id, default: Footprint()].objects.insert(source) }
  }

  /// Records on which executor the next step of a Task continues.
  mutating func arrive(_ task: SimulatedTask, on executor: UnsafeMutableRawPointer?) {
    all[task.id, default: Footprint()].executor = UInt(bitPattern: executor)
  }

  /// Records that the current step resumes a Task, or changes what it sees.
  package mutating func touch(_ task: SimulatedTask) {
    if tasks.isEmpty { step.isUniversal = true } else if !tasks.contains(task.id) { tasks.append(task.id) }
  }

  /// Records that a step of `candidate` begins.
  mutating func begin(_ candidate: Candidate) {
    tasks.removeAll(keepingCapacity: true)
    if Candidate.isTask(candidate.id) {
      tasks.append(candidate.id)
      step = all[candidate.id] ?? Footprint()
    } else if let job = candidate.job {
      // The end of the coroutine settles its completion, for which other coroutines wait.
      let completion = job.handle._withUnsafeGuaranteedRef { $0.completion.id }
      all[candidate.id, default: Footprint()].objects.insert(completion)
      step = all[candidate.id].unsafelyUnwrapped
    } else {
      step = Footprint(isUniversal: true)
    }
  }

  /// Records that the current step, which is one of the candidate `id`, uses an object without waiting for it.
  mutating func touch(_ id: UInt64, _ object: UInt) {
    if step.isUniversal && id >= Candidate.noJob || step.objects.contains(object) { return }
    step.isUniversal = true
    step.objects.insert(object)
    all[id, default: Footprint()].objects.insert(object)
  }

  /// Whether the current step and the next step of a coroutine touch a common object.
  func touches(_ id: UInt64) -> Bool {
    guard let other = all[id] else { return false }
    return other.isUniversal || other.executor != 0 && other.executor == step.executor
      || !other.objects.isDisjoint(with: step.objects)
  }
}

// MARK: - A world's clock as a Clock

/// The clock of one host of a world's network, which may run faster or slower than the world's time.
///
/// It is a line: at the world's time `since` it showed `shown`, and in a million nanoseconds of the world it advances
/// by `millionths` nanoseconds. Another rate begins another line at the same point, so the clock never jumps. All
/// numbers are integers, so a run is the same on every processor.
package struct LocalClock {
  private var shown = SimulatedWorld.start
  private var since = SimulatedWorld.start
  private var millionths: UInt64 = 1_000_000

  /// Creates a clock that shows the world's time.
  package init() {}

  /// The time of this clock at the world's time `now`, rounded down.
  package func reading(at now: UInt64) -> UInt64 {
    shown &+ Self.scaled(now &- since, by: millionths, of: 1_000_000, roundsUp: false)
  }

  /// The first time of the world at which this clock shows `reading`; the beginning of its line if it has shown that.
  package func time(showing reading: UInt64) -> UInt64 {
    guard reading > shown else { return since }
    let (time, overflow) = since.addingReportingOverflow(
      Self.scaled(reading - shown, by: 1_000_000, of: millionths, roundsUp: true)
    )
    return overflow ? .max : time
  }

  /// Returns how many nanoseconds of the world's time `nanoseconds` of this clock last.
  ///
  /// Rounded up, so that no timer of the host is early by the host's own clock. A duration that was clamped to `.max`
  /// stays so.
  package func lasting(_ nanoseconds: Int64) -> Int64 {
    guard nanoseconds > 0, nanoseconds < .max else { return nanoseconds }
    let length = Self.scaled(UInt64(nanoseconds), by: 1_000_000, of: millionths, roundsUp: true)
    return Int64(clamping: length)
  }

  /// Lets the clock run at `millionths` · 10⁻⁶ of the world's rate from the world's time `now` on.
  package mutating func run(atMillionths millionths: UInt64, from now: UInt64) {
    shown = reading(at: now)
    since = now
    self.millionths = millionths
  }

  private static func scaled(_ number: UInt64, by factor: UInt64, of divisor: UInt64, roundsUp: Bool) -> UInt64 {
    let product = UInt128(number) * UInt128(factor) + UInt128(roundsUp ? divisor - 1 : 0)
    return UInt64(clamping: product / UInt128(divisor))
  }
}

extension SimulatedWorld {
  /// The time by the clock of the running code.
  var localNow: UInt64 { clockOfCaller?()?.reading(at: now) ?? now }

  /// The length in the world's time of `nanoseconds` by the clock of the running code.
  func lasting(_ nanoseconds: Int64) -> Int64 { clockOfCaller?()?.lasting(nanoseconds) ?? nanoseconds }

  /// The world's time at which the clock of the running code shows `reading`.
  func time(showing reading: UInt64) -> UInt64 { clockOfCaller?()?.time(showing: reading) ?? reading }

  /// How far the clock of the running code advances in the next `nanoseconds` of the world's time.
  func localLength(_ nanoseconds: UInt64) -> UInt64 {
    guard let clock = clockOfCaller?() else { return nanoseconds }
    return clock.reading(at: now &+ nanoseconds) &- clock.reading(at: now)
  }
}

// MARK: - The policy

/// Makes the choices of a world, and observes its steps.
package protocol WorldPolicy: AnyObject {
  /// Returns the index of the candidate to run.
  ///
  /// There are at least two candidates. If `continues` is true, candidate 0 is the running coroutine. `previous` is the
  /// number of the coroutine that ran last. If that coroutine is a candidate and `continues` is false, it has yielded.
  func chooseNext(_ candidates: UnsafeBufferPointer<Candidate>, continues: Bool, previous: UInt64) -> Int
  /// Returns an index below `count`; for every choice but that of the next coroutine.
  func choose(_ count: Int) -> Int
  /// Returns whether the fault happens.
  func chooseFault(_ name: StaticString) -> Bool
  /// Returns whether time passes although something can run.
  func chooseLate() -> Bool
  /// Returns whether what was written in one piece is read in several.
  func chooseSplit() -> Bool
  /// Called after each step, if `SimulatedWorld.footprints` is not nil.
  ///
  /// If `isUniversal` is true, the step depends on every other step. Two steps that touch one of `tasks` depend on each
  /// other. `isDependent` returns whether this step and the next step of the coroutine or Task with the given number
  /// touch a common object.
  func stepFinished(_ id: UInt64, isUniversal: Bool, tasks: [UInt64], _ isDependent: (UInt64) -> Bool)
  /// Called after each step, if `SimulatedWorld.isTraced`.
  func stepEnded(_ step: SimulatedStep)
  func deadlock(_ dump: String) -> any Error
  func leftRunning(_ dump: String) -> any Error
  /// Returns the error for a wait for the real world; `wait` names the coroutine and what it waits for.
  func realWait(_ wait: String) -> any Error
  /// Returns the error of a world in which a failure was observed by nothing.
  func unhandled(_ error: CoroutineRuntime.UnhandledError) -> any Error
  /// Returns the error of a world that has reached its limit, in nanoseconds of its time.
  ///
  /// A nil limit means that the world took too many steps while no time passed; `.max`, that time, which had no limit,
  /// has passed too often.
  func overLimit(_ limit: UInt64?, _ dump: String) -> any Error
}

/// One step of a run, as the table of a failing run shows it.
package struct SimulatedStep {
  /// The number of the coroutine; 0 for a handler or a blocking body.
  package var id: UInt64
  package var name: String?
  package var launchSite: String
  /// How the step ended: "waiting to receive …", "interrupted" (it could have continued), "ended".
  package var end: String
  package var now: UInt64
}
