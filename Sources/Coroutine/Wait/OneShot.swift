public import CCoroutineRuntime
public import Synchronization

// One wait for one outcome that other code delivers: a callback (co_suspend), a thread (co_blocking), a Task (co_await,
// co_isolated), an actor (ask). The outcome may come before the wait, too late, twice or never.
//
//   PENDING --- settle: the coroutine does not wait yet, or its wait is claimed ---> SETTLED
//      |    --- settle, and a cancellation has claimed the wait before ------------> DETACHED
//      |    --- wait: the coroutine is cancelled, and leaves ----------------------> DETACHED
//      +------- holdToEnd, and the coroutine is cancelled -------------------------> DETACHED
//
// The owner of the cell has a lock, and the memory of the outcome: a SuspendCell in itself, an AsyncCall and an AskCell
// in the coroutine's frame. To deliver an outcome, a thread takes the lock and calls `settle`. If that returns true, it
// stores the outcome and calls `wake`, which leaves the lock. Otherwise it leaves the lock before it releases the
// outcome.
//
// Invariants
//  1. The state leaves PENDING once. It and the epoch are accessed under the lock.
//  2. An outcome is stored in the critical section in which `settle` has returned true. A coroutine that has found
//     SETTLED under the lock, or was woken by `wake`, reads the outcome without the lock.
//  3. The coroutine leaves its call after it has found SETTLED or DETACHED, or was woken by `wake`. So a thread that
//     holds the lock and has found PENDING may write into the coroutine's frame, until it calls `wake`.
//  4. The epoch is set when the coroutine parks. It is cleared by `wake`, by a `settle` whose claim fails, and by the
//     coroutine when it leaves. So the coroutine is woken once: by `wake`, or by the thread that cancels it.
//  5. `isToEnd` changes once, to true, in PENDING. From then on the state does not become DETACHED.
//
// Why each race has one winner
// - settle against settle: invariant 1.
// - settle against a coroutine that is about to wait: both hold the lock. Either the coroutine finds SETTLED and does
//   not park, even if it is cancelled, or `settle` finds the epoch.
// - settle against a cancellation of a waiting coroutine: the claim of the wait decides (Waiter.swift). If `settle`
//   fails to claim, the outcome is late; or, in a cell to the end, it is stored, and the coroutine, which is awake,
//   finds SETTLED when it takes the lock.
// - a cancellation against a coroutine that is about to wait: `wait` reads the flags. An interrupt that is handled
//   after that ends the wait (JobRecord.swift).
// - holdToEnd against a cancellation: the coroutine may take the lock much later, so `holdToEnd` itself checks for a
//   cancellation: the wait is claimed, or the flags say that the job or a frame is cancelled and no shield is active.
//   In that case the coroutine is certainly woken, or does not park: the flags are set before the interrupt is sent,
//   which claims the wait of a job to which a cancellation is visible. Without a shield each signalled frame is
//   visible, and during the call the job adds no frame but the shield of `leave`, after `isToEnd` is set.

@usableFromInline
struct OneShot {
  @usableFromInline enum State: UInt8, Sendable { case pending, settled, detached }

  /// The coroutine and the epoch of its wait, linked where the source has a queue.
  ///
  /// The first field, so that a pointer to it is a pointer to the whole. Its `context` is the owner's.
  @usableFromInline var waiter: Waiter
  @usableFromInline var state = State.pending
  /// Whether the coroutine waits for the outcome although it is cancelled.
  @usableFromInline var isToEnd: Bool
  /// Whether a thread outside of the coroutine's world has settled it.
  @usableFromInline var isFromOutside = false

  @inlinable @inline(__always)
  init(_ job: JobRef, toEnd: Bool = false) {
    waiter = Waiter(job: job)
    isToEnd = toEnd
  }
}

/// Use a cell through its address: an access to the struct would last as long as the wait, and overlap with others.
@usableFromInline typealias OneShotRef = UnsafeMutablePointer<OneShot>

extension UnsafeMutablePointer<Waiter> {
  /// The cell that contains a waiter, in a queue whose waiters all are in cells.
  @inlinable var oneShot: OneShotRef { UnsafeMutableRawPointer(self).assumingMemoryBound(to: OneShot.self) }
}

extension UnsafeMutablePointer where Pointee == OneShot {
  @inlinable var waiter: UnsafeMutablePointer<Waiter> {
    UnsafeMutableRawPointer(self).assumingMemoryBound(to: Waiter.self)
  }
  @inlinable var job: JobRef { pointee.waiter.job.unsafelyUnwrapped }

  // MARK: The outcome

  /// Decides whether a delivered outcome counts; if it returns true, the caller stores the outcome.
  ///
  /// Called under the lock, on any thread.
  @inlinable @inline(__always)
  func settle() -> Bool {
    guard pointee.state == .pending else { return false }
    if pointee.waiter.epoch.isNamed, !job.claim(pointee.waiter.epoch, WakeReason.delivered) {
      pointee.waiter.epoch = .none
      if !pointee.isToEnd {
        pointee.state = .detached
        return false
      }
    }
    pointee.state = .settled
    // One load outside of tests. The thread that settles is known here only.
    if cco_has_worlds() { noteSettler() }
    return true
  }

  /// Notes whether a thread outside of the coroutine's world has settled the cell; called under the lock, PENDING
  /// before, so the coroutine is inside its call.
  @usableFromInline @inline(never)
  func noteSettler() { pointee.isFromOutside = Host.of(job).isCalledFromOutside }

  /// Leaves the lock, and wakes the coroutine if `settle` has claimed its wait.
  @inlinable @inline(__always)
  func wake(leaving lock: borrowing SpinLock) {
    let (job, epoch) = (job, pointee.waiter.epoch)
    pointee.waiter.epoch = .none
    lock.unlock()
    if epoch.isNamed { Carrier.makeReady(job) }
  }

  // MARK: The coroutine

  /// Suspends the running coroutine until an outcome has been stored.
  ///
  /// If it is cancelled before, it calls `onCancel` without the lock, and then throws, or continues to wait if
  /// `isToEnd` is set. `link` is called under the lock immediately before the coroutine parks, and links the waiter. If
  /// it returns false, the wait has ended without an outcome. A cell to the end has no `link`. Inlined down to the
  /// switch, with `link`, because each frame in between costs a mispredicted return.
  @inlinable @inline(__always)
  func wait(
    _ kind: WaitKind,
    _ lock: borrowing SpinLock,
    for source: UInt = 0,
    onCancel: () -> Void,
    link: () -> Bool = { true }
  ) throws {
    let (carrier, job) = try Carrier.requireJob()
    // Foreign code has run since the call began: it may have cancelled this coroutine, or have waited and been woken
    // just before a cancellation. That interrupt found no wait of this cell.
    let isSignalled = job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0
    var error = isSignalled ? job.cancellation() : nil
    lock.lock()
    // Not always the job that made the cell: foreign code may have yielded from a generator, and another coroutine may
    // have made the next step. Job and epoch are used together, under the lock.
    pointee.waiter.job = job
    if pointee.state == .pending, error == nil {
      guard link() else {
        pointee.state = .settled
        return lock.unlock()
      }
      do {
        try WaitQueue.park(carrier, job, kind, for: source) { epoch in
          pointee.waiter.epoch = epoch
          lock.unlock()
        } withdraw: {
        }
        return
      } catch let cancellation {
        error = cancellation
      }
      lock.lock()
    }
    try leave(kind, lock, error, onCancel)
  }

  /// Ends a wait that `wake` has not ended; called under the lock, which it leaves.
  @usableFromInline @inline(never)
  func leave(
    _ kind: WaitKind,
    _ lock: borrowing SpinLock,
    _ error: (any Error)?,
    _ onCancel: () -> Void
  ) throws {
    pointee.waiter.epoch = .none
    if pointee.state == .pending, !pointee.isToEnd { pointee.state = .detached }
    let state = pointee.state
    lock.unlock()
    if state == .settled {
      // One that has parked is found by its wake-up.
      if pointee.isFromOutside { Host.of(job).checkWake(job) }
      return
    }
    onCancel()
    if state == .detached { throw error ?? job.cancellation() ?? CancellationError() }
    try job.withShield { try wait(kind, lock, onCancel: {}) }
  }

  /// Makes the coroutine wait for the outcome even if it is cancelled from now on; called under the lock.
  ///
  /// If the coroutine has left the cell or is cancelled, detaches the cell and returns false.
  ///
  /// Called on any thread; the coroutine is inside its call.
  func holdToEnd() -> Bool {
    guard pointee.state == .pending else { return false }
    let flags = job.pointee.flags.load(ordering: .acquiring)
    let isSignalled = flags & JobFlags.needsCancellationCheck != 0 && flags & JobFlags.shielded == 0
    let epoch = pointee.waiter.epoch
    let isClaimed = epoch.isNamed && job.pointee.wait.load(ordering: .acquiring) != epoch.word
    pointee.isToEnd = !isSignalled && !isClaimed
    if !pointee.isToEnd {
      pointee.waiter.epoch = .none
      pointee.state = .detached
    }
    return pointee.isToEnd
  }
}
