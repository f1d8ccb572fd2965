public import CCoroutine
import CCoroutineRuntime
public import Synchronization

// The part of a job that the scheduler uses. It is a plain record behind a plain pointer, so queueing, waking and
// switching do not retain and release. Each such pair would cost as much as a switch.
//
// Access
//   wait                any thread, atomically (Waiter.swift has the protocol)
//   waitKind, waitSource, waitingSince, selectCount
//                       written on the job's own carrier; read by dumps
//   sweptEpoch          the sweeper (DeadPages.swift)
//   stateWord           by the state of the job; see there
//   flags, cancelReason any thread, atomically
//   scheduler           written on the job's own carrier, by the worker that steals it from a ready queue, or by the
//                       thread that has claimed its wait and moves it to another worker; read by any thread
//   next                the owner of the queue that the job is in, or the thread that has claimed its wait and not yet
//                       woken it
//   owner               the home scheduler's live lock, until the job is published; then its own carrier; read by any
//                       thread
//   live links          the home scheduler's live lock
//   everything else     the job's own carrier (its scheduler's serial execution)
//
// Lifetime. The record is in the cell of the job's object (Job.swift). A live job (launched, not finished) holds
// one retain of its handle, so a live job that is reached by pointer may be used.

/// A pointer to a job's record.
@usableFromInline typealias JobRef = UnsafeMutablePointer<JobRecord>

@usableFromInline
struct JobRecord: ~Copyable {
  // First cache line: the fields that a switch uses.
  @usableFromInline var context: UnsafeMutablePointer<cco_context>?
  @usableFromInline var next: JobRef?
  @usableFromInline let wait = Atomic<UInt64>(0)
  @usableFromInline let scheduler: Atomic<Unmanaged<Scheduler>>
  @usableFromInline let flags = Atomic<UInt32>(0)
  /// The last bits of the epoch of the wait that a sweep has looked at; used by the sweeper only (DeadPages.swift).
  var sweptEpoch: UInt8 = 0
  @usableFromInline let waitKind = Atomic<UInt8>(WaitKind.start.rawValue)
  @usableFromInline var stackClass: UInt8
  @usableFromInline let selectCount = Atomic<UInt8>(0)
  /// The time at which the job parked, yielded or was launched.
  @usableFromInline let waitingSince = Atomic<UInt64>(0)
  /// The source that the job waits for, for dumps.
  ///
  /// The address of a channel, lock or semaphore, of the first source of a select, or of the completion of a job or
  /// promise; the end of a delay; the number of a descriptor; 0 if there is nothing to report. Valid as long as `wait`
  /// does not change (Inspection.swift).
  ///
  /// Until the first wait: the number of bytes of the stack that the job asks for.
  @usableFromInline let waitSource: Atomic<UInt>

  @usableFromInline var frames: UnsafeMutablePointer<CancelFrame>?
  // The next two are laid out as a Flow, which `flow` returns as what follows `frames`.
  /// The number under which the job owns locks, from its registration on: no other owner in this process has it.
  ///
  /// `OwnerNumber.mayStep` is set once the job has stepped a generator: its code may be running in a body then, where
  /// locks are counted.
  @usableFromInline let owner = Atomic<UInt>(0)
  @usableFromInline var locals: Unmanaged<LocalBinding>?

  // The infrequently used fields.
  /// What a job needs in one of its states only.
  ///
  ///     state                   word                              access
  ///     lazy, before its start  its anchor, with a reference and  the thread that launches it, then the one that
  ///                             `isAnchor`, or 0 (AnyJob.launch)  starts it, or the deinit
  ///     in a LaunchStack        the job in front of it            under the lock of the worker's ReadyQueue
  ///     its body has begun      the address of its title and      written on its own carrier, read by reports
  ///                             `isTitle`, or an older word       (CurrentCoroutine.swift)
  @usableFromInline let stateWord = Atomic<UInt>(0)
  @usableFromInline var home: Unmanaged<Scheduler>
  @usableFromInline var previousLive: JobRef?
  @usableFromInline var nextLive: JobRef?
  /// The address of the waiters of the select that the job waits in, as long as `wait` does not change.
  ///
  /// Written on the job's own carrier; read by dumps.
  @usableFromInline let selectWaiters = Atomic<UInt>(0)
  @usableFromInline let cancelReason = Atomic<Unmanaged<CancelReason>?>(nil)
  /// Number, name and launch site.
  ///
  /// The name is a separate C string, because a report of an overflow can use nothing else. It is part of
  /// a JobName, of which the label has a reference. The last field, see `JobRef.label`.
  @usableFromInline var label: cco_label

  @usableFromInline
  init(scheduler: Unmanaged<Scheduler>, stack: StackSize, launchSite: LaunchSite) {
    self.scheduler = Atomic(scheduler)
    self.home = scheduler
    self.waitSource = Atomic(UInt(bitPattern: stack.byteCount))
    self.stackClass = UInt8(cco_stack_class(stack.byteCount))
    self.label = cco_label(id: 0, name: nil, launchSite)
  }
}

extension JobRecord {
  /// The job in front of this one in a LaunchStack.
  @inlinable var previousLaunched: JobRef? {
    get { JobRef(bitPattern: stateWord.load(ordering: .relaxed)) }
    nonmutating set { stateWord.store(UInt(bitPattern: newValue), ordering: .relaxed) }
  }

  /// The number of bytes of the stack that a job asks for which has not begun.
  var stackBytes: Int { Int(bitPattern: waitSource.load(ordering: .relaxed)) }

  /// Keeps the anchor of a lazy job until its start, because its scheduler does not hold it for the job before.
  func setPendingAnchor(_ anchor: Anchor) {
    stateWord.store(UInt(bitPattern: Unmanaged.passRetained(anchor).toOpaque()) | Self.isAnchor, ordering: .relaxed)
  }

  /// The anchor of a lazy job that has not started; the caller gets its reference.
  func takePendingAnchor() -> Unmanaged<Anchor>? {
    let word = stateWord.load(ordering: .relaxed)
    guard word & Self.isAnchor != 0 else { return nil }
    stateWord.store(0, ordering: .relaxed)
    return UnsafeRawPointer(bitPattern: word & ~Self.isAnchor).map { Unmanaged.fromOpaque($0) }
  }

  /// Marks an anchor in `stateWord`: the lowest bit, which is clear in all other addresses there; and a title.
  private static var isAnchor: UInt { 1 }
  static var isTitle: UInt { 2 }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// The number under which the job owns locks, perhaps with a flag (`OwnerNumber`).
  @inlinable var ownerWord: UInt {
    @inline(__always) get { pointee.owner.load(ordering: .relaxed) }
  }

  /// Whether the job stays on its scheduler's thread.
  var keepsThread: Bool { pointee.flags.load(ordering: .relaxed) & JobFlags.keepsThread != 0 }

  /// The address of the label, which other threads may be reading: computed, because an inout access would count as a
  /// write.
  // Sound because it is the last field, and neither type has padding at its end.
  var label: UnsafePointer<cco_label> {
    let offset = MemoryLayout<JobRecord>.size - MemoryLayout<cco_label>.size
    return UnsafeRawPointer(self).advanced(by: offset).assumingMemoryBound(to: cco_label.self)
  }
}

/// The place where a job was launched, for dumps and overflow reports.
@usableFromInline
struct LaunchSite: Sendable {
  // Sound because it points to a literal.
  @usableFromInline nonisolated(unsafe) let file: UnsafePointer<UInt8>
  @usableFromInline let length: UInt32
  @usableFromInline let line: UInt32

  @inlinable
  init(file: StaticString, line: UInt) {
    self.file = file.utf8Start
    self.length = UInt32(truncatingIfNeeded: file.utf8CodeUnitCount)
    self.line = UInt32(truncatingIfNeeded: line)
  }

  fileprivate init(_ label: cco_label) {
    file = UnsafeRawPointer(label.file.unsafelyUnwrapped).assumingMemoryBound(to: UInt8.self)
    length = label.file_length
    line = label.line
  }
}

extension cco_label {
  /// Creates a label with a literal, or with a C string that outlives it.
  @inlinable
  init(id: UInt64, name: StaticString?, _ launchSite: LaunchSite) {
    self.init(
      id: id,
      name: name.map { UnsafeRawPointer($0.utf8Start).assumingMemoryBound(to: CChar.self) },
      file: UnsafeRawPointer(launchSite.file).assumingMemoryBound(to: CChar.self),
      file_length: launchSite.length,
      line: launchSite.line
    )
  }

  var launchSite: LaunchSite { LaunchSite(self) }
}

/// The kind of event that a job waits for, for dumps.
@usableFromInline
enum WaitKind: UInt8, Sendable {
  case start, nothing, callback, task, delay, job, promise, children, select, blocking, readable, writable, lock
  case receive, send, permits, condition, group, answer, decision
  /// The job has yielded: it is ready, and waits for nothing.
  case ready
  /// The job waits until another scheduler takes it over (Arrival.swift).
  case queue
  /// A descriptor, in both directions.
  case descriptor
  /// A newer value of a Watch.
  case change
}

// MARK: - Flags

/// The bits of `JobRecord.flags`.
///
/// The section on the hold has the protocol of the bits about the job's holder.
@usableFromInline
enum JobFlags {
  /// The job was cancelled.
  @usableFromInline static let cancelled: UInt32 = 1
  /// A frame of the cancellation chain (deadline, scope) may be cancelled.
  @usableFromInline static let signalled: UInt32 = 2
  /// The job has been enqueued; a lazy job has not until its start.
  @usableFromInline static let enqueued: UInt32 = 8
  /// A wait of the job has thrown the failure of another job, of a promise or of a channel; see Job.swift.
  static let gotFailure: UInt32 = 16
  /// Held outside its scheduler.
  @usableFromInline static let foreign: UInt32 = 32
  /// Its scheduler popped the job while it was foreign.
  @usableFromInline static let deferredWake: UInt32 = 64
  /// Its scheduler received an interrupt of the job while it was foreign.
  @usableFromInline static let deferredInterrupt: UInt32 = 128
  /// A shield, or a wait that outlasts cancellation, is active: values are delivered in spite of a cancellation.
  @usableFromInline static let shielded: UInt32 = 256
  /// The job has inherited task-locals, which it enters when it starts (Locals.swift).
  @usableFromInline static let inheritsTaskLocals: UInt32 = 512
  /// The job stays on its scheduler, whose thread is always the same (Carrier.swift); changed on the job's own
  /// carrier.
  static let keepsThread: UInt32 = 1024
  /// The body has begun, or the job has failed in its place.
  @usableFromInline static let begun: UInt32 = 2048
  /// A counter in the remaining bits: the number of schedulers that handle an interrupt of the job, of which at most
  /// one reads its frames.
  @usableFromInline static let inspecting: UInt32 = 0xFFFC_0000
  static let oneInspection: UInt32 = 0x4_0000

  // Sets of these.

  /// `cancelled` or `signalled`: check the chain before waiting.
  @usableFromInline static let needsCancellationCheck: UInt32 = 3
  /// `cancelled` or `inheritsTaskLocals`: the body does not begin at once.
  @usableFromInline static let needsPreparation: UInt32 = 513
  /// Any of these: no other thread may move the job, even if it is parked.
  static let staysThere: UInt32 = foreign | inspecting | keepsThread
}

// MARK: - The begin of the body

// The race between a job's start and its cancellation. A job that is cancelled before it begins ends at once, even if
// its queue is blocked: its body never runs, so no code waits for the queue.
//
// States of a job, in the bits `begun` and `cancelled` of its flags
//
//              claimBegin (the job's carrier)
//   UNBEGUN ----------------------------------> BEGUN      `begun`; a cancellation is thrown by the body's waits
//      |
//      +--------------------------------------> DROPPED    `cancelled` without `begun`, for ever
//              claimCancel (any thread)
//
// Invariants
//  1. Each of the two is one atomic operation on the flags, and sees the bit of the other: `claimBegin` sets `begun`
//     only if `cancelled` is clear, and `claimCancel` returns whether `begun` was clear. So a job is either BEGUN or
//     DROPPED, and both sides know which. No bit is cleared.
//  2. The thread that drops a job settles it, with the reason of the cancellation (AnyJob.cancel, AnyJob.refuse). All
//     waiters continue: joining coroutines, the scope, threads. Users' code runs later (below).
//  3. The rest of a dropped job stays until its queue takes it: its entry in a queue (an inbox, a ready queue, a launch
//     stack, a world's list), the runtime's reference, the registration with its scheduler, and its inherited bindings.
//     Only the carrier of that queue may take the entry out. It treats the job as any other, on a stack or without one
//     (AnyJob.fail): it finds that the job is dropped, ends it, and gives up the reference. If it takes the entry
//     before the job is settled, it settles the job with the same error, and the second attempt has no effect. So
//     ordering, stealing, rescue and worlds have no case for dropped jobs. One entry has one reference, so nothing is
//     released twice or forgotten.
//
// Foreign code. `cancel` runs none: it is called on any thread, also by code that holds locks, and by rescuers. If it
// drops a job, it wakes the waiters, and leaves the rest to a thread of Dispatch, or in a world to the world
// (AnyJob.settleDropped): observers, copies, which have observers, Tasks, whose executors may be the program's, and an
// actor's messages and watchers. A callback that is added meanwhile is linked behind them (Completion.swift).
//
// To release the captures of a body that never runs is foreign code too. If the job fails in the body's place, because
// there is no stack for example, the body is released with the failure (AnyJob.fail). The body of a lazy job that is
// never started is released in the job's deinit, which finds `begun` clear. The body of a dropped job is released by
// the queue, when it takes the entry; an empty one stays for the deinit. So a capture of a dropped child may outlive
// the scope, by as long as the queue is busy.

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Begins the job unless it was cancelled; returns the flags that have decided, without `begun`.
  ///
  /// Called once, on the job's own carrier. Relaxed: the bit publishes nothing.
  @inlinable @inline(__always)
  func claimBegin() -> UInt32 {
    var flags = pointee.flags.load(ordering: .relaxed)
    while flags & JobFlags.cancelled == 0 {
      let (isClaimed, seen) = pointee.flags.compareExchange(
        expected: flags,
        desired: flags | JobFlags.begun,
        ordering: .relaxed
      )
      if isClaimed { break }
      flags = seen
    }
    return flags
  }

  /// Cancels the job, and returns whether that has dropped it; then the caller settles it.
  ///
  /// Any thread, after a reason was set.
  func claimCancel() -> Bool {
    let old = pointee.flags.bitwiseOr(JobFlags.cancelled, ordering: .acquiringAndReleasing).oldValue
    return old & (JobFlags.begun | JobFlags.cancelled) == 0
  }

  /// Whether the body never runs.
  var isDropped: Bool {
    pointee.flags.load(ordering: .acquiring) & (JobFlags.cancelled | JobFlags.begun) == JobFlags.cancelled
  }
}

// MARK: - The hold

// The hold of a job determines which thread may resume the job, and which may read the cancellation frames on its
// stack. The job's scheduler does both, unless another thread holds the job: the starter of an immediate start
// (below), or a rescuer, which handles an interrupt in a stuck worker's place. Two others act as rescuers: the search
// for deadlocks (Deadlocks.swift), and the sweep for dead pages, which reads no frames (DeadPages.swift).
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

// MARK: - Interrupts

// An interrupt requests an inspection of a job's chain of cancellation frames (Cancellation.swift); if the chain is
// cancelled, the inspection ends the job's wait. On the job's own carrier the inspection happens at once. Elsewhere an
// interrupt is work that is sent to the job's scheduler. Two parties handle it: the drain of that scheduler, and, if
// the drain of a worker does not reach its inbox because a job computes there, another worker, the rescuer, that has
// taken the work over (TakeOver.swift).
//
// The frames are on the job's stack, so they may be read only while the job is parked and cannot be resumed.
//
//   inspector        what keeps the job parked meanwhile
//   its scheduler    Only its scheduler resumes it, and that is inspecting. No other worker takes it meanwhile.
//   a rescuer        It takes the job: its scheduler and every other worker leave it alone.
//
// The section on the hold has the states, and why at most one of them inspects, of a job whose frames are complete.
//
// Why no request is missed. The flags (of the job and of the frame) are set before the interrupt is sent, and each
// request sends one: the first cancellation of a job, of each scope, and each deadline that passes. If the job checks
// after the flags are set, it sees them: it throws, or inside a shield passes the cancellation on to the scopes outside
// (`cancellation()`). If it checked before, there are two cases. The scheduler handles the interrupt: the job has begun
// its wait before that, because both happen on one serial execution, so the interrupt finds it waiting. Or a rescuer
// finds it waiting, and inspects; if it does not, the interrupt goes back to the scheduler. If the job is on another
// worker by then, the interrupt is sent after it.
//
// A job may leave a queue that is blocked (Arrival.swift), with an interrupt in the inbox of that queue. Later requests
// go to the scheduler where the job is. When the queue comes to the old one, it sends another after the job.

/// The work that inspects the cancellation of a job of another scheduler; it holds the job until it is handled.
final class Interrupt: @unchecked Sendable {
  // Sound because only the inbox that holds the item accesses it, and the job is a constant.
  // The first property, so that the item leads to the object.
  @exclusivity(unchecked) private var storage = WorkItem(Interrupt.function)
  let job: AnyJob

  private init(_ job: AnyJob) {
    self.job = job
    checkAddress(item, of: &storage)
  }

  private var item: UnsafeMutablePointer<WorkItem> { propertyAddress(in: self, at: 0, as: WorkItem.self) }

  /// Follows the job. (A scheduler does not call this: it knows interrupts, and inspects.)
  private static let function: WorkItem.Function = { item in
    let interrupt: Unmanaged<Interrupt> = object(holding: UnsafeRawPointer(item), at: 0)
    interrupt.takeRetainedValue().job.interrupt()
  }

  /// Returns an item that owns its object.
  static func retained(_ job: AnyJob) -> UnsafeMutablePointer<WorkItem> {
    let interrupt = Interrupt(job)
    _ = Unmanaged.passRetained(interrupt)
    return interrupt.item
  }

  /// The interrupt of an item, with the reference that its inbox holds; nil for other work.
  static func owned(by item: UnsafeMutablePointer<WorkItem>) -> Unmanaged<Interrupt>? {
    item.isRun(by: function) ? object(holding: UnsafeRawPointer(item), at: 0) : nil
  }
}

extension AnyJob {
  /// Asks the job's own scheduler to inspect its cancellation.
  ///
  /// Any thread; the caller holds the job.
  func interrupt() {
    // A dropped job has settled, and may still release its captures, whose code may wait.
    guard !completion.isSettled || record.isDropped else { return }
    let scheduler = currentScheduler
    if scheduler.isRunningHere { scheduler.inspect(record) } else { scheduler.push(.work(Interrupt.retained(self))) }
  }

  /// The current scheduler of the job, retained: the job may move, and its old scheduler end, while the caller uses it.
  final var currentScheduler: Scheduler {
    withMove { record.pointee.scheduler.load(ordering: .acquiring).takeUnretainedValue() }
  }
}

extension Scheduler {
  /// Handles an interrupt on this scheduler, or in its place.
  func handle(_ interrupt: Unmanaged<Interrupt>) {
    let job = interrupt.takeRetainedValue().job
    withExtendedLifetime(job) { inspect(job.record) }
  }

  /// Inspects the job's cancellation on this scheduler, or in its place; the caller holds the job.
  func inspect(_ job: JobRef) {
    if worker != nil, !isRunningHere { return inspectInPlace(job) }
    host.willHandleInterrupt()
    guard job.hold.beginInspection() else { return }
    let word = job.pointee.wait.load(ordering: .acquiring)
    // Read after the word: a job that is seen waiting is seen with the scheduler that it waits on.
    guard job.pointee.scheduler.load(ordering: .acquiring).toOpaque() == Unmanaged.passUnretained(self).toOpaque()
    else {
      job.hold.endInspection()
      return job.handle._withUnsafeGuaranteedRef { $0.interrupt() }
    }
    let isWaiting = word & 0xFF == 1
    // Neither parked nor running here: it will check before it waits.
    let scopes = isWaiting || Carrier.current?.pointee.job == job ? job.scopesToCancel() : []
    let isEnded = isWaiting && job.isCancellationVisible && job.claim(WaitEpoch(word: word), WakeReason.cancelled)
    job.hold.endInspection()
    // The frames are not used any more: cancelling a scope whose children have not begun ends the wait for them, and
    // another worker may then run the job.
    scopes.cancel()
    if isEnded { readyQueue.append(job) }
  }

  /// Inspects the job's cancellation on a worker that has taken the interrupt over from this one.
  ///
  /// If that ends the job's wait, the job continues on the worker of the caller; on its own scheduler, if it keeps its
  /// thread, or if that is no worker any more.
  func inspectInPlace(_ job: JobRef) {
    guard let epoch = job.hold.tryTake() else { return job.handle._withUnsafeGuaranteedRef { $0.interrupt() } }
    let scopes = job.scopesToCancel()
    let isEnded = job.isCancellationVisible && job.claim(epoch, WakeReason.cancelled)
    job.hold.release()
    // As above.
    scopes.cancel()
    if isEnded { Carrier.makeReady(job) }
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether the job waits, according to a single relaxed load.
  var seemsWaiting: Bool { pointee.wait.load(ordering: .relaxed) & 0xFF == 1 }
}

// MARK: - Immediate starts

// An immediate start: a job's first part runs on the caller's thread, on a nested carrier.
//
// If the caller's thread is draining the job's own scheduler, this is serial with all other work of that scheduler.
// Otherwise the starter takes the job before it runs, and releases it after it is switched out. Only then does its
// scheduler resume it.

extension AnyJob {
  final func runImmediately() {
    let outer = Carrier.current
    let home = record.pointee.scheduler.load(ordering: .relaxed)
    let isForeign = outer?.pointee.scheduler?.toOpaque() != home.toOpaque()
    if isForeign { record.hold.take() }
    cco_guard_thread()
    switch StackRunner.make(for: record) {
    case .failure(let error): return AnyJob.fail(record, error)
    case .success(let stack): record.pointee.context = stack
    }
    // Retained: the job may end on this carrier, or on another thread before this function has finished with its
    // record.
    withExtendedLifetime(self) {
      // By the scheduler that this thread drains, which need not be the job's own: what the job starts there in turn
      // is inside the starter as well.
      if let outer, let starter = outer.pointee.job, let drained = outer.pointee.scheduler {
        drained._withUnsafeGuaranteedRef { $0.runStarted(by: starter) { Self.runNested(record, outer) } }
      } else {
        Self.runNested(record, outer)
      }
      if isForeign { record.hold.release() }
    }
  }

  /// Runs a job on a nested carrier, which does no switches between jobs: the job comes back here when it first
  /// suspends or ends.
  private static func runNested(_ job: JobRef, _ outer: UnsafeMutablePointer<Carrier>?) {
    let now = outer?.pointee.now ?? Clock.now
    var carrier = Carrier(scheduler: outer?.pointee.scheduler, readyQueue: outer?.pointee.readyQueue, now: now)
    carrier.followRecorder(of: outer)
    withUnsafeMutablePointer(to: &carrier) { carrier in
      cco_layer().pointee.carrier = UnsafeMutableRawPointer(carrier)
      carrier.pointee.job = job
      SchedulerRegistry.noteStart(on: outer)
      Events.note(.run, job, 1)
      let held = LockCheck.putAside()
      cco_switch(&carrier.pointee.driver, &job.pointee.context.unsafelyUnwrapped.pointee.parked)
      LockCheck.takeBack(held)
      Events.noteReturn(of: job, carrier.pointee.leaving)
      if carrier.pointee.leaving != 0 { Carrier.finishLeaving(carrier) }
      cco_layer().pointee.carrier = UnsafeMutableRawPointer(outer)
    }
  }
}
