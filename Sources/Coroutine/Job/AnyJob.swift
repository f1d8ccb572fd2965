internal import CCoroutine
import Glibc
import Synchronization

// States of a job, by its record
//
//   state        queue                       record
//   UNSTARTED    none (lazy), ready or inbox context nil, not finished
//   READY        ready or inbox              context set, wait CLAIMED or RUNNING
//   RUNNING      none                        the carrier's `job`
//   WAITING      queues of its waiters       wait WAITING
//   FINISHED     none                        unregistered; the completion is settled right after
//   DROPPED      as UNSTARTED                settled; still registered, until its queue takes it (JobStart.swift)
//
//   UNSTARTED -> RUNNING -> WAITING -> READY -> RUNNING ... -> FINISHED;  UNSTARTED -> DROPPED -> FINISHED if cancelled
//
// The runtime retains a live job once, from its launch to its end, and lists it in its home scheduler's live list.

/// The common part of all jobs, independent of the result type.
public class AnyJob: @unchecked Sendable {
  // Sound because the record documents the access to each of its fields (JobRecord.swift).
  /// The job's cell, see JobMemory.swift.
  @usableFromInline final let memory: UnsafeMutableRawPointer

  /// Creates a job; `scheduler` comes with the reference that `forRecord` has taken.
  @usableFromInline
  init(
    scheduler: Unmanaged<Scheduler>,
    name: String?,
    stack: StackSize,
    launchSite: LaunchSite,
    completion: consuming Completion
  ) {
    memory = cco_cell_take()
    JobMemory(at: memory).initialize(
      for: self,
      JobRecord(scheduler: scheduler, stack: stack, launchSite: launchSite),
      completion
    )
    checkAddress(UnsafeMutablePointer(mutating: record.label), of: &record.pointee.label)
    checkAddress(
      // The walker of stacks reads it there.
      UnsafeMutableRawPointer(record).assumingMemoryBound(to: UnsafeMutablePointer<cco_context>?.self),
      of: &record.pointee.context
    )
    checkAddress(
      withUnsafeMutablePointer(to: &record.flow.pointee.locals) { UnsafeMutableRawPointer($0) }
        .assumingMemoryBound(to: Unmanaged<LocalBinding>?.self),
      of: &record.pointee.locals
    )
    checkAddress(self.completion.waiterAddress, of: &self.completion.pointee.waiters)
    checkAddress(self.completion.bytesAddress, of: &self.completion.pointee.bytes)
    if let name { record.pointee.label.name = JobName.shared(name).retained() }
  }

  @inlinable final var record: JobRef {
    @inline(__always) get { JobMemory(at: memory).record }
  }
  @inlinable final var completion: CompletionRef {
    @inline(__always) get { JobMemory(at: memory).completion }
  }

  /// Runs `body` while `scheduler` changes and the old one is released, or while a thread retains the current one.
  final func withMove<Output>(_ body: () -> Output) -> Output { completion.pointee.ownersLock.withLock(body) }

  deinit {
    Inspection.letFinish(self)
    if completion.known.state.load(ordering: .acquiring) == Completion.failed { reportUnlessSeen() }
    record.pointee.locals?.release()
    if let reason = record.pointee.cancelReason.load(ordering: .acquiring),
      reason.toOpaque() != CancelReason.noneAddress
    {
      reason.release()
    }
    // Of a lazy job that has not started.
    record.pointee.takePendingAnchor()?.release()
    if record.pointee.flags.load(ordering: .acquiring) & JobFlags.begun == 0 { releaseBody(leavesEmpty: false) }
    // The label stays on the stack until the result has been destroyed as well.
    if let characters = record.pointee.label.name {
      record.pointee.label.name = nil
      JobName.release(at: characters)
    }
    let home = record.pointee.home
    if !home._withUnsafeGuaranteedRef({ $0.isImmortal }) { home.release() }
    JobMemory(at: memory).destroy()
  }

  /// The name given at the launch.
  public final var name: String? { jobName?.text }

  /// The name, whose characters the label points to; the label has a reference.
  final var jobName: JobName? { record.pointee.label.name.map { JobName(at: $0) } }

  /// A number that is unique in this process.
  public final var id: UInt64 { record.pointee.label.id }

  /// Whether the job was cancelled before its end.
  public final var isCancelled: Bool { record.pointee.flags.load(ordering: .acquiring) & JobFlags.cancelled != 0 }

  /// Asks the job to end: from now on every suspension point in it throws `reason`, or `CancellationError` if there is
  /// no reason.
  ///
  /// Idempotent; the first reason wins. A job that has not begun never runs its body: it ends within this call, also if
  /// its queue is blocked, and the coroutines and threads that wait for it are told. The body's captures are released
  /// later, when the queue comes to the job. A body that returns a value all the same has succeeded.
  ///
  /// Never suspends or blocks; any thread, also under a lock: no observer, hook, executor of Tasks or deinit of the
  /// program runs inside the call. If the job has not begun, its observers, its ``Job/uncancelled`` copies and the
  /// Tasks that wait for it are told after the call, and the messages of an actor are dropped after it, on a thread of
  /// Dispatch.
  public final func cancel(_ reason: (any Error)? = nil) {
    let flags = record.pointee.flags.load(ordering: .acquiring)
    guard flags & JobFlags.cancelled == 0, !completion.isSettled else { return }
    guard record.setCancelReason(reason) else { return }
    let isDropped = record.claimCancel()
    // A lazy job that has not started: its queue releases it.
    start()
    if isDropped { settleDropped() } else { interrupt() }
  }

  /// Settles a job that the caller has found dropped, and leaves code of users to another thread.
  final func settleDropped() {
    guard let rest = beginSettlingDropped() else { return }
    // In a forked child there is no other thread.
    if ForkedChild.isHere { return rest() }
    guard let world = Host.simulated(nil) else {
      return completion.orderedHandlers().deliver(.work(ClosureWork.retained(rest, nil)))
    }
    world.post(rest, holding: nil)
  }

  /// Settles a dropped job, runs no code of users, and returns what does, if there is any.
  private final func beginSettlingDropped() -> (@Sendable () -> Void)? {
    // What others do next may depend on it.
    Host.touchesEverything()
    let dropMessages = completion.callbackThatPreparesDrop?.jobWillBeDropped()
    let hasCallbacks = record.ownCancellation.map { completion.failWithoutForeignCode($0) } ?? false
    guard hasCallbacks || dropMessages != nil else { return nil }
    return { [self] in
      dropMessages?()
      if hasCallbacks { completion.callBack() }
    }
  }

  /// Enqueues a lazy job on its scheduler.
  ///
  /// Any thread; only the first call has an effect.
  final func start() {
    // A join of a running job is frequent, and a load is cheaper than the atomic operation below.
    if record.pointee.flags.load(ordering: .acquiring) & JobFlags.enqueued != 0 { return }
    let old = record.pointee.flags.bitwiseOr(JobFlags.enqueued, ordering: .acquiringAndReleasing).oldValue
    guard old & JobFlags.enqueued == 0 else { return }
    let anchor = record.pointee.takePendingAnchor()
    goLive(holding: anchor?.takeUnretainedValue())
    anchor?.release()
    Carrier.makeReady(record)
  }

  /// Makes the runtime hold and list the job until its end.
  final func goLive(holding anchor: Anchor?) {
    _ = Unmanaged.passRetained(self)
    record.pointee.home._withUnsafeGuaranteedRef { $0.register(record, holding: anchor, isLaunch: true) }
    Events.note(.launch, record)
  }

  /// Called before the job is published, so that only its launcher starts it; needs no atomic read-modify-write.
  final func markEnqueued() {
    let flags = record.pointee.flags.load(ordering: .relaxed)
    if flags & JobFlags.enqueued == 0 { record.pointee.flags.store(flags | JobFlags.enqueued, ordering: .relaxed) }
  }

  /// Publishes the job and, unless it is lazy, starts it; `anchor` is its scheduler's, if the caller has it.
  ///
  /// Called once, on the launcher's thread.
  @usableFromInline
  final func launch(_ start: StartMode, holding anchor: Anchor?) {
    if start.kind != .lazy { markEnqueued() }
    inherit()
    switch start.kind {
    case .queued:
      goLive(holding: anchor)
      Carrier.makeLaunchedReady(record)
    case .immediate:
      goLive(holding: anchor)
      runImmediately()
    case .lazy:
      let scheduler = record.pointee.home.takeUnretainedValue()
      if let anchor = anchor ?? scheduler.currentAnchor { record.pointee.setPendingAnchor(anchor) }
      scheduler.identify(record)
    }
  }

  /// Reports the failure of a failed job, once, unless it has been observed or is the job's own cancellation.
  ///
  /// A CancellationError of a job that was not cancelled came from elsewhere, from a job that it joined for example.
  final func reportUnlessSeen() {
    if completion.pointee.isObserved.exchange(true, ordering: .acquiringAndReleasing) { return }
    let error = completion.pointee.failure.unsafelyUnwrapped
    if !isOwnCancellation(error) { report(error) }
  }

  /// The identity of the job, for reports that may come after its end.
  final var origin: JobOrigin { JobOrigin(id: id, launchSite: record.pointee.label.launchSite, name: jobName) }

  /// Whether a failure is the error that cancelling this job threw in it.
  ///
  /// Errors have no identity, so this compares type and text.
  final func isOwnCancellation(_ error: any Error) -> Bool {
    guard let reason = record.ownCancellation else { return false }
    // Checked before the errors are compared, because their texts are users' code.
    if record.isDropped { return true }
    return error is CancellationError || isSameError(error, reason)
  }

  // MARK: The end

  /// Ends a job that never ran, without a stack; with its cancellation's reason if it was cancelled before.
  static func fail(_ job: JobRef, _ error: any Error) {
    job.handle._withUnsafeGuaranteedRef { handle in
      job.pointee.locals.take()?.release()
      if job.claimBegin() & JobFlags.cancelled != 0 {
        handle.endDropped()
      } else {
        handle.releaseBody(leavesEmpty: false)
        handle.willFail(error)
        handle.completion.touch()
        _ = handle.completion.fail(error)
      }
    }
    retire(job)
  }

  /// Ends a dropped job, except for the reference of its entry, which the caller gives up.
  ///
  /// Called by the queue that has taken the entry, on the job's stack or without one.
  @usableFromInline @inline(never)
  final func endDropped() {
    releaseBody(leavesEmpty: true)
    willSettle(.cancelled)
    // The job has been settled, or will be, with the same error.
    beginSettlingDropped()?()
  }

  /// Releases the captures of a body that never runs.
  ///
  /// `leavesEmpty`: leaves an empty body behind, for a later call. Overridden by the class that knows its type.
  @usableFromInline func releaseBody(leavesEmpty: Bool) {}

  /// Begins the job on its own stack; returns false if the job is dropped.
  @inlinable @inline(__always)
  final func begin() -> Bool {
    let flags = record.claimBegin()
    return flags & JobFlags.needsPreparation == 0 || prepareForBody(flags)
  }

  /// Unregisters the job; called just before the result is published: a settled job no longer counts as live.
  @usableFromInline
  final func willSettle(_ ending: JobEnding = .succeeded) {
    record.pointee.home._withUnsafeGuaranteedRef { $0.unregister(record, ending) }
    if let carrier = Carrier.current, carrier.pointee.job == record { carrier.pointee.job = nil }
    if let locals = record.pointee.locals.take() { leave(locals) }
  }

  /// Called in place of `willSettle` if the job fails.
  @usableFromInline
  final func willFail(_ error: any Error) { willSettle(wasCancelled(by: error) ? .cancelled : .failed) }

  /// Whether an error is the one that cancelling this job has thrown in it, as far as its type tells: the errors' texts
  /// are users' code, which a counter must not run.
  private func wasCancelled(by error: any Error) -> Bool {
    guard let reason = record.ownCancellation else { return false }
    return error is CancellationError || type(of: error) == type(of: reason)
  }

  /// Releases the runtime's reference to a job, as the last step.
  static func retire(_ job: JobRef) { job.handle.release() }
}

/// Whether two errors have the same type and text.
func isSameError(_ one: any Error, _ other: any Error) -> Bool {
  type(of: one) == type(of: other) && "\(one)" == "\(other)"
}

/// How a job has ended, for the counters.
@usableFromInline
enum JobEnding: UInt8 { case succeeded, failed, cancelled }
