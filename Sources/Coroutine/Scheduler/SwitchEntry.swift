internal import CCoroutine
import Synchronization

// A coroutine that changes its scheduler (co_switch, co_isolated). The destination's queue may be blocked. So the
// coroutine waits on its own scheduler until the destination's drain takes it over, and a cancellation or a deadline
// ends this wait as any other. Meanwhile an entry represents the coroutine in the queue of the destination.
//
//   the coroutine, on its scheduler                      the entry, at the destination
//   the wait begins; parks
//   switched out: its carrier sends the entry ---------> inbox, ready queue
//   waits                                                the drain takes the entry: claims the wait
//     claimed by a cancellation: continues here,           won: takes the coroutine over, and resumes it at once
//     and throws                                           lost: drops the entry
//
// Invariants
//  1. The claim of the wait decides (Waiter.swift). So the coroutine continues on one of the two schedulers.
//  2. The entry is sent after the coroutine is switched out (`Carrier.leaving`). So the destination, which resumes it,
//     finds its stack parked. The carrier that sends the entry does not access the job, because another thread may have
//     resumed it. The entry contains everything that is needed.
//  3. The drain claims the wait when it takes the entry out of its ready queue, and resumes the coroutine next. So no
//     other work of the destination comes between: a coroutine that was claimed does not wait for that queue.
//  4. The destination is pinned from before the wait until the drain has taken the entry. So the queue lives as long as
//     the entry is in it.
//  5. The queues link a record in the entry, as if it were a job. It is marked as foreign (JobHold.swift) and with
//     `JobFlags.entry`. Every path checks `foreign` before it resumes a job, so all of them leave the record to the
//     driver, where `jobToResume` finds the entry. Its stack class fits no stack. It is not a live job: it is not
//     registered, no object contains it, and no thread cancels it.
//
// The job. A coroutine that was cancelled continues, and may have ended before the drain of a blocked queue takes the
// entry. So the entry holds the job, in a word of three states:
//
//   HELD <--- the drain uses the job ---> USED            HELD or USED --- the coroutine was cancelled ---> GIVEN UP
//
// The thread that takes the job out of the word has its reference: the drain, which puts it back if the entry stays, or
// the coroutine. So the drain only accesses a job that is in memory. An entry that was given up stays until its queue
// runs, but keeps neither the job nor its result.
//
// Deadlines. Their timers are in the wheel of the scheduler on which the coroutine waits, where they must fire. They
// move after the coroutine has arrived, on its own stack, which holds the old scheduler until then.
//
// A cancellation whose interrupt has not arrived. The drain does not take over a coroutine to which a cancellation is
// visible: the interrupt, which is sent after the flags are set, ends the wait (Interrupt.swift). For a cancelled job
// `claim` checks that. For a frame that is signalled, and is not behind a shield, `isCancelled` does.
//
// Frames. The old scheduler may be about to inspect the frames of the waiting coroutine. It has increased the count of
// inspections, and found the wait unclaimed after that. `outlastInspection` reads the count by a read-modify-write
// after the claim. Either it sees the inspection, and waits until the count is zero, or the inspector sees the claim
// (JobHold.swift). An inspection takes only some loads. A rescuer marks the job as foreign instead, and then the drain
// leaves the job to it (`deferWake`).

/// The entry in the queue of a scheduler for a coroutine that is about to continue there.
class SwitchEntry: @unchecked Sendable {
  // Sound because everything is set before the entry is sent, and used by the drain that has taken it out.
  // The first property, so that the record leads to the entry.
  @exclusivity(unchecked) private var recordStorage: JobRecord
  /// The coroutine's record; in memory until the coroutine has given up, and while the drain has taken the job.
  final let coroutine: JobRef
  /// The address of the job, with its reference: HELD; or one of the two below.
  private let held: Atomic<UInt>
  private static var used: UInt { 0 }
  private static var givenUp: UInt { 1 }
  final let destination: Unmanaged<Scheduler>
  /// The wait that the arrival ends.
  @exclusivity(unchecked) final var epoch = WaitEpoch(word: 0)

  init(_ job: JobRef, to destination: Scheduler) {
    coroutine = job
    held = Atomic(UInt(bitPattern: job.handle.retain().toOpaque()))
    self.destination = .passUnretained(destination)
    let label = job.label.pointee
    recordStorage = JobRecord(scheduler: self.destination, stack: .standard, launchSite: label.launchSite)
    checkAddress(record, of: &recordStorage)
    record.pointee.label.id = label.id
    record.pointee.stackClass = .max
    record.hold.becomeEntry()
  }

  deinit { giveUp() }

  final var record: JobRef { propertyAddress(in: self, at: 0, as: JobRecord.self) }

  /// The entry that a record belongs to, with the reference that its queue holds.
  static func holding(_ record: JobRef) -> Unmanaged<SwitchEntry> { object(holding: UnsafeRawPointer(record), at: 0) }

  /// Sends the entry, and gives its reference to the destination's queue.
  ///
  /// Called by the carrier that the coroutine has left.
  final func send() { destination._withUnsafeGuaranteedRef { $0.send(.job(record)) } }

  /// Whether the coroutine does not wait any more, or a cancellation is visible to it.
  final var isCancelled: Bool {
    guard let job = takeJob() else { return true }
    defer { putBack(job) }
    return isCoroutineCancelled
  }

  /// The same, while the caller has taken the job.
  fileprivate final var isCoroutineCancelled: Bool {
    let flags = coroutine.pointee.flags.load(ordering: .acquiring)
    if flags & JobFlags.needsCancellationCheck != 0, flags & JobFlags.shielded == 0 { return true }
    return coroutine.pointee.wait.load(ordering: .acquiring) != epoch.word
  }

  /// Takes the job, for the destination's drain; returns nil if the coroutine has given up.
  fileprivate final func takeJob() -> AnyJob? {
    let word = held.load(ordering: .relaxed)
    guard word > Self.givenUp,
      held.compareExchange(expected: word, desired: Self.used, ordering: .acquiringAndReleasing).exchanged
    else { return nil }
    return Self.job(word).takeRetainedValue()
  }

  fileprivate final func putBack(_ job: AnyJob) {
    let object = Unmanaged.passRetained(job)
    let word = UInt(bitPattern: object.toOpaque())
    let (isBack, _) = held.compareExchange(expected: Self.used, desired: word, ordering: .acquiringAndReleasing)
    if !isBack { object.release() }
  }

  /// Marks the entry as GIVEN UP.
  fileprivate final func giveUp() {
    let word = held.exchange(Self.givenUp, ordering: .acquiringAndReleasing)
    if word > Self.givenUp { Self.job(word).release() }
  }

  private static func job(_ word: UInt) -> Unmanaged<AnyJob> {
    .fromOpaque(UnsafeRawPointer(bitPattern: word).unsafelyUnwrapped)
  }

  // MARK: For subclasses, called by the destination's drain, except for the last

  /// Whether the coroutine may arrive now; if not, the entry is in another queue from here on, with its reference.
  func mayArrive(at scheduler: Scheduler) -> Bool { true }

  /// The drain has claimed the wait, and resumes the coroutine next.
  func hasArrived(at scheduler: Scheduler) {}

  /// The coroutine has given up, and does not arrive.
  func wasDropped(at scheduler: Scheduler) {}

  /// The coroutine was cancelled, and does not wait any more; called on its own carrier.
  func wasCancelled() {}
}

extension JobRef {
  /// Whether a record in a queue is an entry.
  var isEntry: Bool { pointee.flags.load(ordering: .relaxed) & JobFlags.entry != 0 }
}

extension Scheduler {
  /// Returns the job to resume for what was taken out of the ready queue; nil if another thread will resume it, or
  /// nothing has to be.
  ///
  /// Called by the drain.
  @inline(__always)
  func jobToResume(_ job: JobRef) -> JobRef? {
    job.hold.isForeign ? jobToResume(left: job) : job
  }

  @inline(never)
  private func jobToResume(left job: JobRef) -> JobRef? {
    guard job.hold.isForeign else { return job }
    guard job.isEntry else { return job.hold.deferWake() ? nil : job }
    guard let arrived = arrive(SwitchEntry.holding(job)) else { return nil }
    return arrived.hold.deferWake() ? nil : arrived
  }

  /// Takes over the coroutine of an entry that the drain has taken; returns nil if the coroutine has given up.
  private func arrive(_ held: Unmanaged<SwitchEntry>) -> JobRef? {
    var arrived: JobRef?
    let isDone = held._withUnsafeGuaranteedRef { entry in
      let job = entry.takeJob()
      defer { withExtendedLifetime(job) {} }
      if let job, !entry.isCoroutineCancelled {
        guard entry.mayArrive(at: self) else {
          entry.putBack(job)
          return false
        }
        if job.record.claim(entry.epoch, WakeReason.delivered) { arrived = job.record }
      }
      if let arrived {
        takeOver(arrived)
        entry.hasArrived(at: self)
      } else {
        entry.wasDropped(at: self)
      }
      entry.destination._withUnsafeGuaranteedRef { $0.unpin() }
      return true
    }
    if isDone { held.release() }
    return arrived
  }

  /// Takes over a job whose wait the caller has claimed, and the reference that its record holds.
  private func takeOver(_ job: JobRef) {
    job.outlastInspection()
    let old = job.pointee.home
    if !isImmortal { _ = Unmanaged.passRetained(self) }
    let oldScheduler = old.takeUnretainedValue()
    oldScheduler.unregister(job)
    register(job, holding: nil)
    job.handle._withUnsafeGuaranteedRef {
      $0.withMove { job.pointee.scheduler.store(Unmanaged.passUnretained(self), ordering: .releasing) }
    }
    job.hold.leaveInterrupt()
    // The coroutine holds it until its deadlines have moved.
    if !oldScheduler.isImmortal { old.release() }
  }
}

extension Carrier {
  /// Suspends the running job until the destination of `entry` takes it over, and continues it there.
  ///
  /// If the job is cancelled before that, it continues on its own scheduler, and throws. The entry was made for the
  /// running job and this wait; `anchor` is the destination's, if the caller has it.
  static func switchOver(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ entry: SwitchEntry,
    holding anchor: Anchor?
  ) throws {
    let job = entry.coroutine
    // Retained, because the job may be the last one that keeps it alive.
    let old = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
    entry.destination._withUnsafeGuaranteedRef { $0.pin(anchor) }
    try WaitQueue.park(carrier, job, .queue) { epoch in
      entry.epoch = epoch
      carrier.pointee.leaving = UInt(bitPattern: Unmanaged.passRetained(entry).toOpaque()) | leavingEntry
    } withdraw: {
      entry.giveUp()
      entry.wasCancelled()
    }
    // Where it has arrived: a worker may have taken the entry of another one.
    let current = job.pointee.scheduler.load(ordering: .relaxed)
    withExtendedLifetime(old) { current._withUnsafeGuaranteedRef { job.moveDeadlines(to: $0) } }
  }
}
