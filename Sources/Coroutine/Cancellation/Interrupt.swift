import Synchronization

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
// JobHold.swift has the states, and why at most one of them inspects, of a job whose frames are complete.
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
