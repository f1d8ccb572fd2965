internal import CCoroutine
import Synchronization

// A coroutine waits for a Task that it has started for that purpose.
//
// The coroutine starts the Task immediately, so the first part runs on the coroutine's stack. If the Task ends in its
// first part, the coroutine never parks. During the first part the carrier has no job, and the thread has no
// CoroutineLocals, because every part of a Task is outside any coroutine, and sees the bindings that the Task carries.
// So no code can wait in the first part, and the thread stays the same until the coroutine runs again.
//
// The outcome is written into the coroutine's frame, which exists while the state is PENDING. So the cell has no type
// parameter, and a call allocates the cell, the Task and its closure.
//
//   PENDING --- the Task ends: outcome written, wait claimed --------------> ENDED
//   PENDING --- the coroutine is cancelled, and has then taken the lock ---> DETACHED
//
// There are three kinds of calls.
//   co_await        a cancellation leaves the Task: DETACHED.
//   co_awaitToEnd   a cancellation does not leave PENDING: `isToEnd`.
//   co_isolated     a body in the coroutine's frame runs in the Task, on an actor. The call is left until the body
//                   begins; from then on it is to the end. `beginBody` decides (6).
//
// Invariants
//  1. The state changes once, under `lock`. The thread that ends the Task writes into the frame under the lock and in
//     PENDING only; the coroutine leaves the frame only after it has seen, under the lock, that the state is not
//     PENDING. (On the coroutine's own stack, before it parks, there is no other thread.)
//  2. Of a cancellation and the Task's end exactly one wins: the claim of the wait decides, in the same critical
//     section.
//     If the call is to the end, a cancellation that wins ends the first wait only: the state stays PENDING, and the
//     coroutine waits again, inside a shield.
//  3. The Task's parts run on the coroutine's scheduler, as its preferred executor. From before the coroutine parks
//     until the Task's end the call holds a pin of that scheduler, because the coroutine may leave first.
//  4. `isToEnd` changes once, from false to true, under `lock` and in PENDING only. From then on the state does not
//     become DETACHED.
//  5. The Task touches the coroutine's frame only under `lock` in PENDING, or between a `beginBody` that has returned
//     true and `end`. In both cases the coroutine is inside the call: it leaves in ENDED or DETACHED.
//  6. Exactly one of the two happens: the body runs and the call has its outcome, or the body never runs and the call
//     throws. `beginBody` sets `isToEnd`, and the coroutine that was cancelled sets DETACHED, in the same critical
//     section; the first of them wins. A Task that comes too late finds a call that leads to no frame any more, and
//     holds nothing but that call and the actor.
//
// Why the body does not begin after a cancellation, although the coroutine may take the lock much later, because its
// queue is busy. `beginBody` looks for a cancellation by itself, as `claim` does for a value (Waiter.swift): the wait
// was claimed, or a flag says that the job or a frame is cancelled and no shield is active. Then it detaches the call
// in the coroutine's place. The coroutine is certainly woken, or does not park: the flags are set before the interrupt
// is sent, which claims the wait of a job to which a cancellation is visible (Interrupt.swift). Without a shield each
// frame that is signalled is visible, and while the call lasts the job adds and removes no frame but the call's own
// shield, which it adds after `isToEnd` is set.

@usableFromInline
final class AsyncCall: @unchecked Sendable {
  // Sound because everything mutable is accessed under `lock`, and the rest by the coroutine only.
  @usableFromInline enum State: UInt8 { case pending, ended, detached }

  private let lock = SpinLock()
  @exclusivity(unchecked) private var state = State.pending
  /// The coroutine's `Result<Output, any Error>?`.
  @usableFromInline let outcomeAddress: UnsafeMutableRawPointer
  @exclusivity(unchecked) private var waiter: (job: JobRef, epoch: WaitEpoch)?
  @exclusivity(unchecked) private var isPinned = false
  private let scheduler: Scheduler
  /// The coroutine and its carrier while the first part runs; used by the coroutine only.
  private let job: JobRef
  private let carrier: UnsafeMutablePointer<Carrier>
  /// The CoroutineLocals of the thread while the first part runs, which sees those that the Task carries.
  @exclusivity(unchecked) private var localsOfThread: UnsafeMutableRawPointer?
  @usableFromInline let carriesLocals: Bool

  /// Whether the coroutine waits for the Task's end although it is cancelled.
  @exclusivity(unchecked) private var isToEnd: Bool

  private init(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    _ outcomeAddress: UnsafeMutableRawPointer,
    toEnd: Bool
  ) {
    self.carrier = carrier
    self.job = job
    scheduler = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
    isToEnd = toEnd
    self.outcomeAddress = outcomeAddress
    carriesLocals = job.pointee.locals != nil
  }

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
  /// Called by the Task. After true it calls `end`, after false `leave`.
  func beginBody() -> Bool {
    lock.lock()
    defer { lock.unlock() }
    guard state == .pending else { return false }
    // The job lives: it is inside the call.
    let flags = job.pointee.flags.load(ordering: .acquiring)
    let isSignalled = flags & JobFlags.needsCancellationCheck != 0 && flags & JobFlags.shielded == 0
    let isClaimed = waiter.map { $0.job.pointee.wait.load(ordering: .acquiring) != $0.epoch.word } ?? false
    if isSignalled || isClaimed {
      state = .detached
      return false
    }
    isToEnd = true
    return true
  }

  /// Ends a Task whose body has not begun.
  func leave() {
    let needsOutcome = beginEnd()
    assert(!needsOutcome, "only a detached call is left")
  }

  // MARK: The Task's end

  /// Ends the call, on any thread.
  @inlinable
  func end<Output>(_ outcome: consuming Result<Output, any Error>) {
    if beginEnd() {
      outcomeAddress.assumingMemoryBound(to: Result<Output, any Error>?.self).pointee = outcome
      finishEnd()
    }
  }

  /// Returns true if the coroutine still needs the outcome; then the caller holds the lock.
  @usableFromInline
  func beginEnd() -> Bool {
    lock.lock()
    if state == .pending {
      guard let (job, epoch) = waiter, !job.claim(epoch, WakeReason.delivered) else { return true }
      // A cancellation has won: the coroutine leaves, or waits again for this end.
      waiter = nil
      if isToEnd { return true }
      state = .detached
    }
    let wasPinned = isPinned
    lock.unlock()
    unpin(if: wasPinned)
    return false
  }

  @usableFromInline
  func finishEnd() {
    state = .ended
    let job = waiter?.job
    let wasPinned = isPinned
    lock.unlock()
    if let job { Carrier.makeReady(job) }
    unpin(if: wasPinned)
  }

  private func unpin(if wasPinned: Bool) {
    if wasPinned { scheduler.unpin() }
  }

  // MARK: The coroutine

  /// Suspends until the Task has ended.
  ///
  /// If the coroutine is cancelled, cancels the Task, and throws or, if the call is to the end, waits on.
  @usableFromInline
  func wait(for task: Task<Void, Never>) throws {
    carrier.pointee.job = job
    cco_thread().pointee.locals = localsOfThread
    // The first part may have cancelled this coroutine, and that interrupt did not find it running.
    if job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0 { job.cancelScopes() }
    // Most calls end here: if the Task has ended on this stack, no other thread has the call.
    lock.lock()
    let isEnded = state == .ended
    lock.unlock()
    if isEnded { return }
    if scheduler.readyQueue.pointee.workerPool == nil { pin() }
    let ownTask = unsafeBitCast(task, to: UInt.self)
    // If the body of an exclusive co_isolated waits for a Task, that Task may use the actor.
    let isExclusive = scheduler.isOwnTurn && scheduler.exclusion.owner == job
    if isExclusive { scheduler.exclusion.ownTask = ownTask }
    defer {
      if isExclusive { scheduler.exclusion.ownTask = 0 }
    }
    let state = try park()
    if state == .ended { return }
    task.cancel()
    guard state == .pending else { throw job.cancellation() ?? CancellationError() }
    try job.withShield { _ = try park() }
  }

  private func pin() {
    lock.lock()
    isPinned = state == .pending
    // The running job holds the queue.
    if isPinned { scheduler.pin(nil) }
    lock.unlock()
  }

  /// Suspends until the Task has ended or a cancellation has come; returns the state.
  ///
  /// PENDING means that a cancellation has come, and that the call is to the end.
  private func park() throws -> State {
    let (carrier, job) = try Carrier.requireJob()
    // The Task's first part may have cancelled this coroutine, and that interrupt was consumed.
    let isCancelled =
      job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0 && job.cancellation() != nil
    lock.lock()
    if state == .pending, !isCancelled {
      // The error is ignored, because the state tells whether the wait was cancelled.
      _ = try? WaitQueue.park(carrier, job, .task) { epoch in
        waiter = (job, epoch)
        lock.unlock()
      } withdraw: {
      }
      lock.lock()
    }
    waiter = nil
    if state == .pending, !isToEnd { state = .detached }
    let state = state
    lock.unlock()
    return state
  }
}
