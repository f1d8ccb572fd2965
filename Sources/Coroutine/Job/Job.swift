internal import CCoroutine
internal import CCoroutineRuntime
public import Dispatch
import Glibc
import Synchronization

/// The handle of a launched coroutine.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// let profile = co_launch { try fetch("/profile") }
/// let news = co_launch { try fetch("/news") }
/// let page = try profile.join().text + news.join().text
/// ```
///
/// Releasing it does not affect the coroutine; an unobserved failure is then reported to
/// ``CoroutineRuntime/unhandledErrorHandler``. Several coroutines may join it and get the same value, so values are
/// Sendable.
public final class Job<Success: Sendable>: AnyJob, @unchecked Sendable {
  // Sound because the completion has its own lock, and the body is accessed by the job's own carrier, or by the last
  // reference's owner (JobRecord.swift).

  /// The body, which is in the completion's bytes until it is taken: the result comes after it.
  @usableFromInline typealias Body = () throws -> Success

  @inlinable
  init(
    scheduler: Unmanaged<Scheduler>,
    name: String?,
    stack: StackSize,
    launchSite: LaunchSite,
    body: @escaping () throws -> Success
  ) {
    super.init(
      scheduler: scheduler,
      name: name,
      stack: stack,
      launchSite: launchSite,
      completion: Completion(for: Success.self) { value, job in
        if let value {
          Completion.destroy(value, as: Success.self)
        } else {
          unsafeDowncast(job.unsafelyUnwrapped, to: Job<Success>.self).run()
        }
      }
    )
    // Into the object, not into a value that is then copied into it as numbers: the optimiser would not see that the
    // body outlives the caller, and would put what it captures on the caller's stack.
    completion.bytesAddress.withMemoryRebound(to: Body.self, capacity: 1) { $0.initialize(to: body) }
  }

  /// Whether the job has ended, with a value or an error.
  public var isFinished: Bool { completion.isSettled }

  /// Runs the body and settles.
  ///
  /// Called on the job's own stack. A world adds the completion of a job to each of its steps.
  @inlinable
  func run() {
    guard begin() else { return endDropped() }
    do {
      let value = try takeBody()()
      willSettle()
      _ = completion.succeed(value)
    } catch {
      willFail(error)
      _ = completion.fail(error)
    }
  }

  /// Takes the body out; called by the job's own carrier, or by the deinit.
  @inlinable @inline(__always)
  func takeBody() -> Body { completion.bytesAddress.withMemoryRebound(to: Body.self, capacity: 1) { $0.move() } }

  @usableFromInline override func releaseBody(leavesEmpty: Bool) {
    let held = Unmanaged.passRetained(HeldBody(takeBody()) as AnyObject)
    if leavesEmpty {
      completion.bytesAddress.withMemoryRebound(to: Body.self, capacity: 1) {
        $0.initialize(to: { throw CancellationError() })
      }
    }
    ReleasedBodies.release(held)
  }

  /// Waits until the job has ended, and returns its result.
  ///
  /// Suspends the calling coroutine if the job has not ended. Any number of coroutines may join, before the end or
  /// after it. Starts a lazy job. If the calling coroutine is cancelled, it throws its own cancellation error and does
  /// not affect the job.
  /// - Throws: The job's error; the cancellation error; ``CoroutineError/wouldDeadlock`` if a job joins itself;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine.
  @inlinable @discardableResult
  @available(*, noasync, message: "await `value`")
  public func join() throws -> Success {
    // The completion is stored in this object, and its address does not keep the object alive.
    defer { withExtendedLifetime(self) {} }
    if !completion.known.isSettled { try prepareToWait() }
    try completion.wait(.job)
    return try completion.get(as: Success.self)
  }

  @usableFromInline
  func prepareToWait() throws {
    let (_, job) = try Carrier.requireJob()
    if job == record { throw CoroutineError.wouldDeadlock(because: .joinsItself) }
    try job.checkCancelled()
    start()
  }

  /// Waits until the job has ended, and returns its outcome; a failure of the job is returned, not thrown.
  ///
  /// For code that goes on whatever has become of the job. It counts as observing a failure. In all other respects it
  /// waits as ``join()`` does.
  /// - Throws: The caller's own cancellation error; ``CoroutineError/wouldDeadlock`` if a job waits for itself;
  ///   ``CoroutineError/notInCoroutine`` outside a coroutine.
  @discardableResult
  @available(*, noasync, message: "await `value`, and catch its error")
  public func outcome() throws -> Result<Success, any Error> {
    defer { withExtendedLifetime(self) {} }
    if !completion.known.isSettled { try prepareToWait() }
    try completion.wait(.job)
    return completion.seenOutcome(as: Success.self)
  }

  /// Cancels the job, and waits until it has ended: what it has opened is closed then.
  ///
  /// As ``AnyJob/cancel(_:)``, then ``outcome()``. Suspends until the job's cleanup is done. If the calling coroutine
  /// is cancelled, it throws its own cancellation error, and the job stays cancelled; to wait all the same, call it
  /// inside ``co_shield(_:)``.
  /// - Returns: The job's outcome: its value if it had one all the same, otherwise its error.
  /// - Throws: As ``outcome()``.
  @discardableResult
  @available(*, noasync, message: "cancel it, and await `value`")
  public func cancelAndJoin(_ reason: (any Error)? = nil) throws -> Result<Success, any Error> {
    cancel(reason)
    return try outcome()
  }

  /// Blocks the calling thread until the job has ended, and returns its result.
  ///
  /// For tests, command-line tools and other threads that serve no queue. Starts a lazy job. It cancels nothing, and
  /// cannot be cancelled. On the main thread of a program without `dispatchMain()` it runs the blocks of the main queue
  /// meanwhile, also those of the main actor, which the job may need. It cannot in such a block: then a line on
  /// standard error says so after a second. A queue that the job's queue *targets* cannot be recognised, because
  /// Dispatch does not reveal it: waiting there blocks for ever. In the body of a ``co_blocking(_:)`` the thread does
  /// not count towards ``CoroutineRuntime/blockingThreadLimit`` while it waits, so the job may use co_blocking too.
  /// - Throws: The job's error; ``CoroutineError/wouldDeadlock``, at once, inside a coroutine, or on the queue that the
  ///   job needs, or on a queue that targets it. A forked child that waits for a job of its parent ends.
  @discardableResult
  @available(*, noasync, message: "await `value`")
  public func blockingWait() throws -> Success {
    LockCheck.mayWait()
    if !completion.isSettled { try Host.requireReal { "Job.blockingWait, which blocks its thread" } }
    if let carrier = Carrier.current, carrier.pointee.job != nil {
      throw CoroutineError.wouldDeadlock(because: .blocksCoroutine)
    }
    if !completion.isSettled {
      ForkedChild.mayWait()
      if currentScheduler.isCurrent { throw CoroutineError.wouldDeadlock(because: .blocksOwnQueue) }
      completion.blockThread(for: { "coroutine \(summary)" }, { start() })
    }
    completion.pointee.isObserved.store(true, ordering: .relaxed)
    return try completion.get(as: Success.self)
  }

  /// Runs `body` once after the end, whatever the outcome.
  ///
  /// `body` runs on `queue`; without a queue, on the queue of the calling coroutine; outside a coroutine, on a global
  /// queue. It never runs inside this call, and also runs if attached after the end. Several bodies run in the order of
  /// attaching. It sees the locals and task-locals that are bound where it is attached. It does not change the outcome,
  /// and does not count as observing a failure. Does not suspend; any thread.
  @discardableResult
  public func finally(on queue: DispatchQueue? = nil, _ body: @escaping @Sendable () -> Void) -> Self {
    let handlerTarget = completion.handlerTarget(on: queue)
    let body = LocalBinding.binding(body)
    completion.touch()
    if !completion.add(ClosureCallback { handlerTarget.deliver(body) }, observes: .no) { handlerTarget.deliver(body) }
    return self
  }
}

// MARK: - A job without its type

// States of a job, by its record
//
//   state        queue                       record
//   UNSTARTED    none (lazy), ready or inbox context nil, not finished
//   READY        ready or inbox              context set, wait CLAIMED or RUNNING
//   RUNNING      none                        the carrier's `job`
//   WAITING      queues of its waiters       wait WAITING
//   FINISHED     none                        unregistered; the completion is settled right after
//   DROPPED      as UNSTARTED                settled; still registered, until its queue takes it (JobRecord.swift)
//
//   UNSTARTED -> RUNNING -> WAITING -> READY -> RUNNING ... -> FINISHED;  UNSTARTED -> DROPPED -> FINISHED if cancelled
//
// The runtime retains a live job once, from its launch to its end, and lists it in its home scheduler's live list.

/// The common part of all jobs, independent of the result type.
public class AnyJob: @unchecked Sendable {
  // Sound because the record documents the access to each of its fields (JobRecord.swift).
  /// The job's cell.
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
    // The anchor of a lazy job that has not started, or the title.
    record.releaseStateWord()
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
  /// later, when the queue comes to the job. A body that returns a value all the same has succeeded. A job that has
  /// ended with a `CancellationError` before, because what it waited for was cancelled first, is not reported any more.
  ///
  /// Never suspends or blocks; any thread, also under a lock: no observer, hook, executor of Tasks or deinit of the
  /// program runs inside the call. If the job has not begun, its observers, its ``Job/uncancelled`` copies and the
  /// Tasks that wait for it are told after the call, and the messages of an actor are dropped after it, on a thread of
  /// Dispatch.
  public final func cancel(_ reason: (any Error)? = nil) {
    let flags = record.pointee.flags.load(ordering: .acquiring)
    guard flags & JobFlags.cancelled == 0 else { return }
    if completion.isSettled {
      if completion.pointee.failure is CancellationError {
        completion.pointee.isObserved.store(true, ordering: .relaxed)
      }
      return
    }
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
  final var origin: JobOrigin { JobOrigin(id: id, launchSite: record.pointee.label.launchSite, name: nameForReports) }

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
        handle.completion.callbackThatPreparesDrop?.jobWillBeDropped()?()
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
  final func willFail(_ error: any Error) {
    let ending: JobEnding = wasCancelled(by: error) ? .cancelled : .failed
    willSettle(ending)
    if ending == .failed, EndedJobs.isOn.load(ordering: .relaxed) { EndedJobs.note(error, of: record) }
  }

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

// MARK: - The cell of a job

// The memory of a job. It is a cell of the C core, not the memory of the object that users hold: the C library gives
// memory back between two bursts of launches, and to get it again costs more than the launches (docs/evolution/0056).
//
//   AnyJob            cell, 256 bytes
//   +-----------+     +-----------+------------+--------+
//   | memory ---+---> | JobRecord | Completion | object |
//   +-----------+     +-----------+------------+--------+
//         ^                                        |
//         +------------- no reference -------------+
//
// The object makes the cell in its init and gives it back at the end of its deinit, so a record lives as long as its
// object. The runtime's queues and lists hold records; a live job holds one retain of its object for them.

/// The parts of a job, by the address of its cell.
// Sound because each part is aligned to 8 bytes and has a size that is a multiple of it, so the offsets are multiples
// too; and all three together fit into a cell, which `initialize` checks.
@usableFromInline
struct JobMemory {
  @usableFromInline let cell: UnsafeMutableRawPointer

  @inlinable @inline(__always)
  init(at cell: UnsafeMutableRawPointer) { self.cell = cell }

  /// Initializes all of it, for `object`.
  func initialize(for object: AnyJob, _ record: consuming JobRecord, _ completion: consuming Completion) {
    if Self.objectOffset + MemoryLayout<Unmanaged<AnyJob>>.size > Int(CCO_CELL_BYTES) {
      misuse("a job does not fit into its cell")
    }
    self.record.initialize(to: record)
    self.completion.initialize(to: completion)
    self.object.initialize(to: .passUnretained(object))
  }

  /// Ends all of it, the value or failure of the completion as well, and gives the cell back.
  func destroy() {
    completion.deinitialize(count: 1)
    record.deinitialize(count: 1)
    cco_cell_give(cell)
  }

  @inlinable var record: JobRef {
    @inline(__always) get { cell.assumingMemoryBound(to: JobRecord.self) }
  }
  @inlinable var completion: CompletionRef {
    @inline(__always) get { (cell + Self.completionOffset).assumingMemoryBound(to: Completion.self) }
  }
  /// The object that the cell belongs to; constant.
  @inlinable var object: UnsafeMutablePointer<Unmanaged<AnyJob>> {
    @inline(__always) get { (cell + Self.objectOffset).assumingMemoryBound(to: Unmanaged<AnyJob>.self) }
  }

  @inlinable static var completionOffset: Int { MemoryLayout<JobRecord>.stride }
  @inlinable static var objectOffset: Int { completionOffset + MemoryLayout<Completion>.stride }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Prefetches the object of a job that has not begun, and what its body has captured.
  ///
  /// The body may have been released by another thread: then this prefetches something useless.
  @inline(__always)
  func prefetchBody() {
    cco_prefetch_line(handle.toOpaque())
    // The second word of a function is the address of its context.
    let body = JobMemory(at: UnsafeMutableRawPointer(self)).completion.bytesAddress.pointee[1]
    if let captures = UnsafeRawPointer(bitPattern: body) { cco_prefetch_line(captures) }
  }

  /// The object that the record belongs to.
  @inlinable var handle: Unmanaged<AnyJob> {
    @inline(__always) get { JobMemory(at: UnsafeMutableRawPointer(self)).object.pointee }
  }
}

extension UnsafeMutablePointer where Pointee == Completion {
  /// The record of the job whose completion this is.
  var ownJob: JobRef {
    JobMemory(at: UnsafeMutableRawPointer(self) - JobMemory.completionOffset).record
  }
}

// MARK: - What a dump reads

// The description of a job that others wait for, for dumps.

extension AnyJob: Inspectable {
  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "job \(names.job(self))" }
  func verb(of queue: UInt?) -> String { "await" }
}

// MARK: - Failures that were received

// Distinguishes a job's own failure from one that it received from another job. A coroutine that joins a failed one
// gets its error, and usually throws the same error. Then two coroutines of a scope fail with one error. The scope's
// caller gets that error, so it must not be reported as an unhandled error too.
//
// Neither the type nor the text of the errors distinguishes this from two failures, because children that do the same
// work may fail with equal errors. A failure is a received one if both of these hold:
//  1. It is the same error object. `throw`, `catch` and `Result` keep the object of an `any Error`; a second `throw
//     Oops()` makes a second one.
//  2. The coroutine has received a failure of another one (JobFlags.gotFailure). Without this, children that each throw
//     one stored `any Error` would count as one failure.

extension Carrier {
  /// Records that the running job receives the failure of another one.
  ///
  /// Not inlined: it runs only on the path of a throw.
  @usableFromInline @inline(never)
  static func noteFailure() {
    guard let job = current?.pointee.job else { return }
    if job.pointee.flags.load(ordering: .relaxed) & JobFlags.gotFailure != 0 { return }
    _ = job.pointee.flags.bitwiseOr(JobFlags.gotFailure, ordering: .relaxed)
  }
}

extension Result where Failure == any Error {
  /// Returns the value or throws the error, which the running job has received from other code.
  @inlinable
  func received() throws -> Success {
    if case .failure = self { Carrier.noteFailure() }
    return try get()
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether `error`, which ends the job or a part of its body, is the `failure` that it received from another one.
  func passesOn(_ failure: any Error, as error: any Error) -> Bool {
    pointee.flags.load(ordering: .relaxed) & JobFlags.gotFailure != 0 && isSameObject(failure, error)
  }
}

/// Whether two errors are one object.
///
/// Sound because `any Error` is one word, the reference to an object that holds the error; otherwise the cast traps.
private func isSameObject(_ one: any Error, _ other: any Error) -> Bool {
  unsafeBitCast(ErrorReference(error: one), to: UInt.self) == unsafeBitCast(ErrorReference(error: other), to: UInt.self)
}

/// Wraps an error, so that the call of a generic function does not open it.
private struct ErrorReference {
  let error: any Error
}
