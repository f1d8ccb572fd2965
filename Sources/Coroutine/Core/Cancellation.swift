public import Synchronization

// Cancellation is level-triggered: once it is asked for, every suspension point of the job throws, until the body ends or
// a shield hides it.
//
// What a suspension point looks at is a chain of frames on the job's own stack, innermost first, and behind the last one
// the job's own flag:
//
//   shield        nothing further out is seen
//   deadline      passed? CancellationError, which its co_timeout turns into TimeoutError
//   scope         cancelled (a child failed, or Scope.cancel)? its reason
//   (the job)     cancelled? its reason
//
// The chain belongs to the job's turn. Others never look into it: they set an atomic flag that it leads to, set
// `JobFlags.signalled` or `.cancelled`, and send the job an interrupt. An interrupt is handled on the turn of the job's own
// scheduler: if the job is parked and its chain now says "cancelled", its wait is claimed.
//
// No request is missed: the flags are set before the interrupt is sent. If the job looks after that, it sees them. If it
// looked before, it has begun its wait before its scheduler handles the interrupt, because both happen on one serial
// execution, so the interrupt finds it waiting. A job that was stolen meanwhile has the interrupt sent after it.

/// A frame of the chain, on the stack of co_timeout, co_shield or a scope.
@usableFromInline
struct CancelFrame: ~Copyable {
  @usableFromInline enum Kind: Sendable { case shield, deadline, scope }
  let outer: UnsafeMutablePointer<CancelFrame>?
  let kind: Kind
  /// The deadline has passed, or the scope has been cancelled.
  ///
  /// Set by anyone.
  let isSignalled = Atomic<Bool>(false)
  /// What a cancelled scope throws inside; read only when `isSignalled`.
  var scope: Unmanaged<Scope>?
  /// A deadline's timer and whose wheel it is in.
  ///
  /// Own turn.
  var timer: (node: UnsafeMutablePointer<TimerNode>, scheduler: Unmanaged<Scheduler>)?

  init(_ kind: Kind, inside outer: UnsafeMutablePointer<CancelFrame>?, scope: Unmanaged<Scope>? = nil) {
    self.kind = kind
    self.outer = outer
    self.scope = scope
  }
}

/// Why a job was cancelled.
///
/// The first one that gets into the record stays.
@usableFromInline
final class CancelReason: Sendable {
  let error: any Error
  init(_ error: any Error) { self.error = error }

  /// One for all who give no reason, so that cancelling allocates nothing.
  static let none = CancelReason(CancellationError())
  static var noneAddress: UnsafeMutableRawPointer { Unmanaged.passUnretained(none).toOpaque() }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Throws when cancellation is in force.
  ///
  /// Own turn; one relaxed load on the usual path.
  @inlinable @inline(__always)
  func checkCancelled() throws {
    if pointee.flags.load(ordering: .relaxed) & JobFlags.mustLook != 0, let error = cancellation() { throw error }
  }

  /// What a suspension point has to throw, if anything.
  ///
  /// Own turn, or its scheduler's while it is parked.
  @usableFromInline @inline(never)
  func cancellation() -> (any Error)? { cancellation(from: pointee.frames) }

  func cancellation(outside frame: UnsafeMutablePointer<CancelFrame>) -> (any Error)? {
    cancellation(from: frame.pointee.outer)
  }

  private func cancellation(from innermost: UnsafeMutablePointer<CancelFrame>?) -> (any Error)? {
    var frame = innermost
    while let current = frame {
      switch current.pointee.kind {
      case .shield:
        return nil
      case .deadline:
        if current.pointee.isSignalled.load(ordering: .acquiring) { return CancellationError() }
      case .scope:
        if current.pointee.isSignalled.load(ordering: .acquiring) {
          return current.pointee.scope!._withUnsafeGuaranteedRef { $0.cancellationError }
        }
      }
      frame = current.pointee.outer
    }
    return ownCancellation
  }

  /// Cancels the children of every scope to which a cancellation from outside is visible, also while the body does not
  /// look: it may be shielded.
  ///
  /// Where `cancellation` may be called.
  func cancelScopes() {
    var frame = pointee.frames
    while let current = frame {
      if let scope = current.pointee.scope, let reason = cancellation(outside: current) {
        scope._withUnsafeGuaranteedRef { $0.passOn(reason) }
      }
      frame = current.pointee.outer
    }
  }

  /// The reason given to Job.cancel, whatever hides it.
  @usableFromInline var ownCancellation: (any Error)? {
    guard pointee.flags.load(ordering: .acquiring) & JobFlags.cancelled != 0 else { return nil }
    return pointee.cancelReason.load(ordering: .acquiring)?._withUnsafeGuaranteedRef { $0.error } ?? CancellationError()
  }

  /// After a frame has gone: whether anything that is left still has something to say.
  ///
  /// Own turn.
  func forgetSignals() {
    guard pointee.flags.load(ordering: .relaxed) & JobFlags.signalled != 0 else { return }
    _ = pointee.flags.bitwiseAnd(~JobFlags.signalled, ordering: .acquiringAndReleasing)
    var frame = pointee.frames
    while let current = frame {
      if current.pointee.isSignalled.load(ordering: .acquiring) {
        _ = pointee.flags.bitwiseOr(JobFlags.signalled, ordering: .acquiringAndReleasing)
        return
      }
      frame = current.pointee.outer
    }
  }
}

extension AnyJob {
  /// Asks the job's own scheduler to look at its cancellation.
  ///
  /// Any thread; the caller holds the job.
  func interrupt() {
    let old = record.pointee.flags.bitwiseOr(JobFlags.interruptPending, ordering: .acquiringAndReleasing).oldValue
    guard old & JobFlags.interruptPending == 0, !completion.isSettled else { return }
    // The message holds the job until it is handled.
    _ = Unmanaged.passRetained(self)
    currentScheduler.send(.interrupt(record))
  }

  /// The scheduler that the job is on now, held: it may move, and its old one end, while the caller uses it.
  final var currentScheduler: Scheduler {
    record.pointee.move.withLock { record.pointee.scheduler.load(ordering: .acquiring).takeUnretainedValue() }
  }
}

extension Scheduler {
  /// Handles an interrupt on this scheduler's turn.
  ///
  /// Between two lanes the job may be claimed by another waker and taken along (Turn.sendRemotely), or be rescued from this
  /// lane's inbox (LaneGroup.rescue), while its frames are looked at here. Both sides do a read-modify-write of `flags`:
  /// either this one comes first, and the other sees `looking` and leaves the job to this scheduler's inbox; or the other's
  /// comes first, and the claim before it is seen here, so that nobody looks.
  func handleInterrupt(of job: JobRef) {
    let handle = job.handle
    defer { handle.release() }
    _ = job.pointee.flags.bitwiseAnd(~JobFlags.interruptPending, ordering: .acquiringAndReleasing)
    // A job that runs on a foreign turn may be about to begin a wait at this very moment: its starter repeats the interrupt.
    if deferIfForeign(job, JobFlags.deferredInterrupt) { return }
    _ = job.pointee.flags.wrappingAdd(JobFlags.oneLooks, ordering: .acquiringAndReleasing)
    defer { _ = job.pointee.flags.wrappingSubtract(JobFlags.oneLooks, ordering: .acquiringAndReleasing) }
    let word = job.pointee.wait.load(ordering: .acquiring)
    // Read after the word: a job seen waiting is seen with the scheduler that it waits on.
    guard job.pointee.scheduler.load(ordering: .acquiring).toOpaque() == Unmanaged.passUnretained(self).toOpaque()
    else {
      return handle._withUnsafeGuaranteedRef { $0.interrupt() }
    }
    let isRunningHere = Turn.current?.pointee.job == job
    // Neither parked nor running right here: it will look before it waits.
    guard word & 0xFF == 1 || isRunningHere else { return }
    job.cancelScopes()
    if word & 0xFF == 1, job.cancellation() != nil, job.claim(WaitToken(word: word), WakeReason.cancelled) {
      lane.append(job)
    }
  }
}
