internal import CCoroutine
import Synchronization

// A coroutine that changes its scheduler (co_switch, co_isolated). The destination's queue may be blocked. So the
// coroutine waits on its own scheduler until the destination takes it over, and a cancellation or a deadline ends this
// wait as any other. Meanwhile an arrival, which is work of the destination, represents the coroutine there.
//
//   the coroutine, on its scheduler                      the arrival, at the destination
//   the wait begins; parks
//   switched out: its carrier sends the arrival -------> inbox, work
//   waits                                                the drain runs the arrival: claims the wait
//     claimed by a cancellation: continues here,           won: takes the coroutine over, and resumes it at once
//     and throws                                           lost: nothing
//
// Invariants
//  1. The claim of the wait decides (Waiter.swift). So the coroutine continues on one of the two schedulers.
//  2. The arrival is sent after the coroutine is switched out (`Carrier.leaving`). So the destination, which resumes
//     it, finds its stack parked. The carrier that sends the arrival does not access the job, because another thread
//     may have resumed it. The arrival contains everything that is needed.
//  3. The drain of a queue claims the wait when it runs the arrival, and resumes the coroutine next. So no other work
//     of the destination comes between: a coroutine that was claimed does not wait for that queue. A worker claims the
//     wait when it takes the message: the coroutine is ready from then on, and any worker may take it.
//  4. The destination is pinned from before the wait until the arrival has run. So the queue lives as long as the
//     arrival is in it.
//
// The job. A coroutine that was cancelled continues, and may have ended before a blocked queue comes to the arrival. So
// the arrival holds the job, in a word of two states:
//
//   HELD --- the drain runs the arrival, or the coroutine was cancelled ---> TAKEN
//
// The thread that takes the job out of the word has its reference. So the drain only accesses a job that is in memory.
// An arrival that was given up stays until its queue runs, but keeps neither the job nor its result.
//
// Deadlines. Their timers are in the wheel of the scheduler on which the coroutine waits, where they must fire. They
// move after the coroutine has arrived, on its own stack, which holds the old scheduler until then.
//
// A cancellation whose interrupt has not arrived. The destination does not take over a coroutine to which a
// cancellation is visible: the interrupt, which is sent after the flags are set, ends the wait (JobRecord.swift). For a
// cancelled job `claim` checks that. For a frame that is signalled, and is not behind a shield, `isCancelled` does.
//
// Frames. The old scheduler may be about to inspect the frames of the waiting coroutine. It has increased the count of
// inspections, and found the wait unclaimed after that. `outlastInspection` reads the count by a read-modify-write
// after the claim. Either it sees the inspection, and waits until the count is zero, or the inspector sees the claim
// (JobRecord.swift). An inspection takes only some loads. A rescuer marks the job as foreign instead, and then the
// destination leaves the job to it (`deferWake`).

/// The work of a scheduler at which a coroutine is about to continue.
final class Arrival: @unchecked Sendable {
  // Sound because only the queue that holds the item accesses it, `held` is atomic, and everything else is constant
  // once the arrival is sent.
  // The first property, so that the item leads to the object.
  @exclusivity(unchecked) private var storage = WorkItem(Arrival.function)
  /// The coroutine's record; in memory while the arrival, or its drain, holds the job.
  private let coroutine: JobRef
  /// The number of the coroutine, for worlds.
  let id: UInt64
  /// The job, with a reference: HELD; or nil: TAKEN.
  private let held: Atomic<Unmanaged<AnyJob>?>
  let destination: Unmanaged<Scheduler>
  /// The wait that the arrival ends.
  @exclusivity(unchecked) fileprivate var epoch = WaitEpoch(word: 0)

  fileprivate init(_ job: JobRef, to destination: Scheduler) {
    coroutine = job
    id = job.label.pointee.id
    held = Atomic(job.handle.retain())
    self.destination = .passUnretained(destination)
    checkAddress(item, of: &storage)
  }

  deinit { giveUp() }

  private var item: UnsafeMutablePointer<WorkItem> { propertyAddress(in: self, at: 0, as: WorkItem.self) }

  private static let function: WorkItem.Function = { item in
    let carrier = Carrier.current.unsafelyUnwrapped
    carrier.pointee.scheduler.unsafelyUnwrapped._withUnsafeGuaranteedRef { scheduler in
      if let job = scheduler.arrive(object(holding: UnsafeRawPointer(item), at: 0)) {
        scheduler.resumeNext(job, carrier)
      }
    }
  }

  /// The arrival of an item, with the reference that its queue holds; nil for other work.
  static func owned(by item: UnsafeMutablePointer<WorkItem>) -> Unmanaged<Arrival>? {
    item.isRun(by: function) ? object(holding: UnsafeRawPointer(item), at: 0) : nil
  }

  /// Sends the arrival, and gives its reference to the destination.
  ///
  /// Called by the carrier that the coroutine has left.
  func send() { destination._withUnsafeGuaranteedRef { $0.send(.work(item)) } }

  /// Whether the coroutine does not wait any more, or a cancellation is visible to it.
  ///
  /// Called while no other thread gives up or takes the job.
  var isCancelled: Bool {
    if held.load(ordering: .acquiring) == nil || seesCancellation { return true }
    return coroutine.pointee.wait.load(ordering: .acquiring) != epoch.word
  }

  private var seesCancellation: Bool {
    let flags = coroutine.pointee.flags.load(ordering: .acquiring)
    return flags & JobFlags.needsCancellationCheck != 0 && flags & JobFlags.shielded == 0
  }

  /// Claims the wait of the coroutine; returns nil if the coroutine does not come.
  fileprivate func claim() -> JobRef? {
    guard let job = held.exchange(nil, ordering: .acquiringAndReleasing)?.takeRetainedValue() else { return nil }
    return withExtendedLifetime(job) {
      !seesCancellation && coroutine.claim(epoch, WakeReason.delivered) ? coroutine : nil
    }
  }

  /// Releases the job, of a coroutine that was cancelled.
  fileprivate func giveUp() { held.exchange(nil, ordering: .acquiringAndReleasing)?.release() }
}

extension Scheduler {
  /// Takes over the coroutine of an arrival; returns the job to resume, and nil if the coroutine has given up, or
  /// another thread has the job and will queue it here.
  ///
  /// Called in this scheduler's drain, with the reference that the queue of the arrival had.
  func arrive(_ held: Unmanaged<Arrival>) -> JobRef? {
    let arrival = held.takeRetainedValue()
    defer { arrival.destination._withUnsafeGuaranteedRef { $0.unpin() } }
    guard let job = arrival.claim() else { return nil }
    takeOver(job)
    return job.hold.deferWake() ? nil : job
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
    // The coroutine holds it until its deadlines have moved.
    if !oldScheduler.isImmortal { old.release() }
  }
}

extension Carrier {
  /// Suspends the running job until `destination` takes it over, and continues it there.
  ///
  /// If the job is cancelled before that, it continues on its own scheduler, and throws. `anchor` is the destination's,
  /// if the caller has it.
  static func switchOver(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    to destination: Scheduler,
    holding anchor: Anchor?
  ) throws {
    let arrival = Arrival(job, to: destination)
    // Retained, because the job may be the last one that keeps it alive.
    let old = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
    destination.pin(anchor)
    try WaitQueue.park(carrier, job, .queue) { epoch in
      arrival.epoch = epoch
      carrier.pointee.leaving = UInt(bitPattern: Unmanaged.passRetained(arrival).toOpaque()) | leavingArrival
    } withdraw: {
      arrival.giveUp()
    }
    // Where it has arrived: a worker may have taken the arrival of another one.
    let current = job.pointee.scheduler.load(ordering: .relaxed)
    withExtendedLifetime(old) { current._withUnsafeGuaranteedRef { job.moveDeadlines(to: $0) } }
  }
}
