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
// The chain belongs to the job's turn. Others never change it: they set an atomic flag that it leads to, set
// `JobFlags.signalled` or `.cancelled`, and send the job an interrupt. Whoever handles the interrupt looks at the chain of a job
// that is parked and, if it now says "cancelled", claims its wait (Interrupt.swift).

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
  /// The owner of a `scope` frame, and how to reach it.
  var owner: Owner?
  /// A deadline's timer and whose wheel it is in.
  ///
  /// Own turn.
  var timer: (node: UnsafeMutablePointer<TimerNode>, scheduler: Unmanaged<Scheduler>)?

  /// What cancels others in the frame's name: a scope. A function of a type that this file does not know.
  @usableFromInline
  struct Owner {
    let object: UnsafeRawPointer
    /// What a cancelled owner throws inside; called only when `isSignalled`.
    let error: (UnsafeRawPointer) -> any Error
    /// Cancels the owner for a reason that comes from outside of the frame.
    let cancel: (UnsafeRawPointer, any Error) -> Void
  }

  init(_ kind: Kind, inside outer: UnsafeMutablePointer<CancelFrame>?) {
    self.kind = kind
    self.outer = outer
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
    if pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0, let error = cancellation() { throw error }
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
          return current.pointee.owner.map { $0.error($0.object) } ?? CancellationError()
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
      if let owner = current.pointee.owner, let reason = cancellation(outside: current) {
        owner.cancel(owner.object, reason)
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
