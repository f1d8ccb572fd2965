internal import CCoroutine
public import Synchronization

// The hold of a job determines which thread may resume the job, and which may read the cancellation frames on its
// stack. The job's scheduler does both, unless another thread holds the job: the starter of an immediate start
// (ImmediateStart.swift), or a rescuer, which handles an interrupt in a stuck worker's place (Interrupt.swift). Two
// others act as rescuers: the search for deadlocks (Deadlocks.swift), and the sweep for dead pages, which reads no
// frames (DeadPages.swift).
//
//                    take (a starter), tryTake (a rescuer)
//    FREE ------------------------------------------------------> FOREIGN ---+  deferWake, beginInspection: the
//    |  ^  <-- release: performs the deferred wake and interrupt --- |  ^----+  scheduler leaves a bit
//    |  |
//    v  | endInspection
//    INSPECTED   beginInspection, by the job's scheduler; in FOREIGN this leaves a bit instead
//
//   state      in JobRecord.flags   resumes it                  reads its frames   moves it to another worker (mayMove)
//   FREE       -                    its scheduler               no thread          who has claimed its wait, or who
//                                                                                  takes it out of an inbox
//   INSPECTED  a count above zero   its scheduler, afterwards   its scheduler      no thread
//   FOREIGN    `foreign`            no thread, or the starter   the holder         no thread
//
// A steal may also move a FOREIGN job that the drain has queued: `deferWake` then leaves it to its holder.
//
// All of this is in one word with the job's other flags, and changed by atomic read-modify-writes in this file only.
//
// A wake against a release. A foreign job publishes its waits while it runs outside its scheduler. So a waker may queue
// it, and its scheduler pop it, before its stack is switched out (the case that Waiter.swift excepts).
//
//   its scheduler, having popped it     the holder, after the job is switched out
//   sets `deferredWake`                 clears `foreign`
//   `foreign` was still set: drops it   `deferredWake` was set: queues it again
//   `foreign` was clear: resumes it
//
// The word orders the two operations, so exactly one of them sees the other's bit: the job is resumed once, and only
// after the holder has released it. Interrupts are deferred in the same way by `deferredInterrupt`. A bit is set only
// while `foreign` is set, by one compare-and-swap. If the bit were set first and cleared again, a rescuer that takes
// the job in between could see it, and act on it.
//
// A rescuer takes a job in four steps:
//
//   1. `wait` says WAITING, in a word w
//   2. read-modify-write of `flags`: sets `foreign`. If it was set already, or the count is not zero: give up
//   3. compare-and-swap of `wait` from w to w. If it fails: give up
//   4. the stack is switched out (cco_is_parked). If it is not: give up
//
// To give up is to release the job, if step 2 has taken it, and to request the interrupt again. Of two rescuers the
// second one to set `foreign` gives up.
//
// Why the job is not resumed from step 3 on. A waker first claims the wait, by a compare-and-swap from w to another
// word. If the claim comes before 3 in the order of that word, 3 fails. If it comes after 3, the waker has acquired
// what 3 has released, including `foreign`. Through the ready queue or an inbox, so has the worker that pops the job.
// It sees `foreign`; or it sees that `foreign` was cleared after the inspection, and acquires the inspection. (To claim
// the wait the rescuer needs no permission: that is one more compare-and-swap from w.)
//
// Why at most one party inspects. Both read and write `flags` in one operation: the rescuer sets `foreign` and checks
// the count, the scheduler adds to the count and checks `foreign`. The later of the two sees the earlier one, and gives
// up or defers. Of two schedulers that count, only the one that the job is on reads the frames: a worker that the job
// has left may be about to notice that when the job's new worker begins its inspection. Hence a count: the first worker
// would clear a single bit.
//
// Why no job is moved while its frames are read. A waker that moves the job has claimed its wait. A rescuer that finds
// the job in an inbox got it from such a waker. Both then do a read-modify-write of `flags`, as the inspector
// does before it reads `wait`. Either the inspector's comes first, and the other sees the count and leaves the job to
// its scheduler; or the other's comes first, and then the inspector sees the claim, and reads no frames.
//
// Why the frames are complete. Step 4 acquires what the job did before it left its stack; the job changes its chain on
// its own carrier only. Step 3 shows that the job is parked in the wait of w, and not in an earlier one: the job begins
// each wait by a new word, on its own carrier.

/// The operations on the hold of a job.
@usableFromInline
struct JobHold {
  @usableFromInline let job: JobRef

  @inlinable @inline(__always)
  init(_ job: JobRef) { self.job = job }

  // MARK: Foreign

  /// Whether another thread than its scheduler's has the job.
  @inlinable var isForeign: Bool {
    @inline(__always) get { job.pointee.flags.load(ordering: .acquiring) & JobFlags.foreign != 0 }
  }

  /// Takes a job that is about to start outside its scheduler, and that no other thread knows yet.
  func take() { _ = job.pointee.flags.bitwiseOr(JobFlags.foreign, ordering: .relaxed) }

  /// Takes a parked job, which is not resumed until `release`; returns nil if it is not parked, or held or inspected by
  /// another thread.
  ///
  /// The caller keeps the job in memory.
  func tryTake() -> WaitEpoch? {
    let word = job.pointee.wait.load(ordering: .acquiring)
    guard word & 0xFF == 1 else { return nil }
    let old = job.pointee.flags.bitwiseOr(JobFlags.foreign, ordering: .acquiringAndReleasing).oldValue
    guard old & JobFlags.foreign == 0 else { return nil }
    if old & JobFlags.inspecting == 0, stillWaits(word), job.pointee.context != nil, isSwitchedOut {
      return WaitEpoch(word: word)
    }
    release()
    return nil
  }

  /// Gives the job back to its scheduler, and does what that scheduler has deferred meanwhile.
  ///
  /// The caller keeps the job in memory.
  func release() {
    let deferred = JobFlags.deferredWake | JobFlags.deferredInterrupt
    let old = job.pointee.flags.bitwiseAnd(~(JobFlags.foreign | deferred), ordering: .acquiringAndReleasing).oldValue
    if old & JobFlags.deferredWake != 0 { Carrier.makeReady(job) }
    if old & JobFlags.deferredInterrupt != 0 { job.handle._withUnsafeGuaranteedRef { $0.interrupt() } }
  }

  /// Leaves a popped job to its holder, which queues it again; returns false if the caller must resume it.
  func deferWake() -> Bool { deferIfForeign(JobFlags.deferredWake) }

  private func deferIfForeign(_ bit: UInt32) -> Bool {
    var flags = job.pointee.flags.load(ordering: .acquiring)
    while flags & JobFlags.foreign != 0 {
      let (isDeferred, seen) = job.pointee.flags.compareExchange(
        expected: flags,
        desired: flags | bit,
        successOrdering: .acquiringAndReleasing,
        failureOrdering: .acquiring
      )
      if isDeferred { return true }
      flags = seen
    }
    return false
  }

  // MARK: Inspected

  /// Begins an inspection on a scheduler; returns false if the job's holder repeats the interrupt.
  func beginInspection() -> Bool {
    // A job that runs on a foreign carrier may be about to begin a wait at this moment: its starter repeats the
    // interrupt.
    while !deferIfForeign(JobFlags.deferredInterrupt) {
      if countInspections(by: JobFlags.oneInspection) & JobFlags.foreign == 0 { return true }
      // A rescuer came first.
      endInspection()
    }
    return false
  }

  /// Ends what `beginInspection` has begun.
  func endInspection() { _ = countInspections(by: 0 &- JobFlags.oneInspection) }

  /// Changes the count, and returns the flags from before.
  private func countInspections(by change: UInt32) -> UInt32 {
    job.pointee.flags.wrappingAdd(change, ordering: .acquiringAndReleasing).oldValue
  }

  /// Whether a scheduler inspects the job, whose wait the caller has claimed: if not, none will until its next wait.
  var isInspected: Bool { current & JobFlags.inspecting != 0 }

  // MARK: Free

  /// Whether the caller may move the job, which it has claimed or found in an inbox, to another worker: the job has not
  /// started or is switched out, no thread holds or inspects it, and it does not keep its thread.
  var mayMove: Bool { current & JobFlags.staysThere == 0 && isSwitchedOut }

  /// The flags, by a read-modify-write, which is ordered with those of the others.
  private var current: UInt32 { job.pointee.flags.bitwiseOr(0, ordering: .acquiringAndReleasing).newValue }

  /// Whether no stack of the job is in use; true if it has none yet.
  private var isSwitchedOut: Bool { job.pointee.context.map { cco_is_parked(&$0.pointee.parked) } ?? true }

  /// Whether the wait has not been claimed; a thread that claims it afterwards has acquired what the caller did before.
  private func stillWaits(_ word: UInt64) -> Bool {
    job.pointee.wait.compareExchange(
      expected: word,
      desired: word,
      successOrdering: .acquiringAndReleasing,
      failureOrdering: .relaxed
    ).exchanged
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  @inlinable var hold: JobHold {
    @inline(__always) get { JobHold(self) }
  }
}
