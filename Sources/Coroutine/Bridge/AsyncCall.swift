internal import CCoroutine
import Synchronization

// A coroutine waits for a Task that it has started for that purpose.
//
// The coroutine starts the Task immediately, so the first part runs on the coroutine's stack. If the Task ends in its
// first part, the coroutine never parks. During the first part the carrier has no job, and the thread has no
// CoroutineLocals, because every part of a Task is outside any coroutine, and sees the bindings that the Task carries.
// So no code can wait in the first part, and the thread stays the same until the coroutine runs again.
//
// The coroutine and the Task share a cell (OneShot.swift). The outcome is written into the coroutine's frame. So the
// call has no type parameter, and allocates the cell, the Task and its closure.
//
// There are three kinds of calls.
//   co_await        a cancellation leaves the Task
//   co_awaitToEnd   the cell is to the end: a cancellation does not leave the Task
//   co_isolated     a body in the coroutine's frame runs in the Task, on an actor. The call is left until the body
//                   begins; from then on it is to the end. `beginBody` decides.
//
// Invariants
//  1. The Task touches the coroutine's frame only under `lock` if `settle` has returned true, or between a `beginBody`
//     that has returned true and `end`. In both cases the coroutine is inside the call (OneShot.swift, 3 and 5).
//  2. The Task's parts run on the coroutine's scheduler, as its preferred executor. From before the coroutine parks
//     until the Task's end the call holds a pin of that scheduler, because the coroutine may leave first. `isPinned`
//     changes once, under `lock` and in PENDING, so the Task may read it after that.
//  3. Exactly one of the two happens: the body runs and the call has its outcome, or the body never runs and the call
//     throws. A Task whose coroutine has left touches no frame: it holds only the call and the actor.

@usableFromInline
final class AsyncCall: @unchecked Sendable {
  // Sound because `one` and `isPinned` are accessed as said above, and the rest by the coroutine only.
  /// Accessed through `one` only.
  @exclusivity(unchecked) private var storage: OneShot
  private let lock = SpinLock()
  /// The coroutine's `Result<Output, any Error>?`.
  @usableFromInline let outcomeAddress: UnsafeMutableRawPointer
  @exclusivity(unchecked) private var isPinned = false
  private let scheduler: Scheduler
  /// The coroutine's carrier while the first part runs.
  private let carrier: UnsafeMutablePointer<Carrier>
  /// The CoroutineLocals of the thread while the first part runs, which sees those that the Task carries.
  @exclusivity(unchecked) private var localsOfThread: UnsafeMutableRawPointer?
  @usableFromInline let carriesLocals: Bool

  private init(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    _ outcomeAddress: UnsafeMutableRawPointer,
    toEnd: Bool
  ) {
    storage = OneShot(job, toEnd: toEnd)
    self.carrier = carrier
    scheduler = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
    self.outcomeAddress = outcomeAddress
    carriesLocals = job.pointee.locals != nil
    checkAddress(one, of: &storage)
  }

  private var one: OneShotRef { propertyAddress(in: self, at: 0, as: OneShot.self) }

  /// Begins a call that writes its outcome to `outcomeAddress`; throws the cancellation error.
  @usableFromInline
  static func begin(_ outcomeAddress: UnsafeMutableRawPointer, toEnd: Bool) throws -> AsyncCall {
    let (carrier, job) = try Carrier.beginWaiting()
    Host.touchesEverything()
    return AsyncCall(carrier, job, outcomeAddress, toEnd: toEnd)
  }

  /// Starts the Task: calls `start`, which runs outside the coroutine.
  @inlinable @inline(__always)
  func start(_ start: () -> Task<Void, Never>) -> Task<Void, Never> {
    guard carriesLocals else {
      hide()
      return start()
    }
    return startCarryingLocals(start)
  }

  @usableFromInline @inline(never)
  func startCarryingLocals(_ start: () -> Task<Void, Never>) -> Task<Void, Never> {
    LocalBinding.carried {
      hide()
      return start()
    }
  }

  /// Leaves the coroutine until `wait`.
  @usableFromInline
  func hide() {
    carrier.pointee.job = nil
    localsOfThread = cco_thread().pointee.locals
    cco_thread().pointee.locals = nil
  }

  @usableFromInline var executor: any TaskExecutor { scheduler.taskExecutor }
  @usableFromInline var priority: TaskPriority? { scheduler.host.taskPriority }

  // MARK: The body of co_isolated

  /// Begins the body in the coroutine's frame; returns false if the coroutine has left the call, or is cancelled.
  ///
  /// Called by the Task. After true it calls `end`, after false `unpin`.
  func beginBody() -> Bool { lock.withLock { one.holdToEnd() } }

  // MARK: The Task's end

  /// Ends the call, on any thread.
  @inlinable
  func end<Output>(_ outcome: consuming Result<Output, any Error>) {
    if beginEnd() {
      outcomeAddress.assumingMemoryBound(to: Result<Output, any Error>?.self).pointee = outcome
      finishEnd()
    }
    unpin()
  }

  /// Returns true, with the lock held, if the coroutine still needs the outcome.
  @usableFromInline
  func beginEnd() -> Bool {
    lock.lock()
    if one.settle() { return true }
    lock.unlock()
    return false
  }

  @usableFromInline
  func finishEnd() { one.wake(leaving: lock) }

  /// Ends the Task's use of the scheduler.
  @usableFromInline
  func unpin() { if isPinned { scheduler.unpin() } }

  // MARK: The coroutine

  /// Suspends until the Task has ended.
  ///
  /// If the coroutine is cancelled, cancels the Task, and throws or, if the call is to the end, waits on.
  @usableFromInline
  func wait(for task: Task<Void, Never>) throws {
    let job = one.job
    carrier.pointee.job = job
    cco_thread().pointee.locals = localsOfThread
    // The first part may have cancelled this coroutine, and that interrupt did not find it running.
    if job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0 { job.cancelScopes() }
    // Most calls end here: if the Task has ended on this stack, no other thread has the call.
    if endsOrPins() { return }
    try one.wait(.task, lock, onCancel: { task.cancel() })
  }

  /// Whether the Task has ended; otherwise pins the scheduler of a queue.
  private func endsOrPins() -> Bool {
    lock.lock()
    defer { lock.unlock() }
    // The running job holds the queue.
    if one.pointee.state == .pending, scheduler.readyQueue.pointee.workerPool == nil {
      isPinned = true
      scheduler.pin(nil)
    }
    return one.pointee.state == .settled
  }
}
