public import Synchronization

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
