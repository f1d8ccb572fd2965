import Glibc
public import Synchronization

// Cancellation is level-triggered: once requested, every suspension point of the job throws, until the body ends or a
// shield hides it.
//
// A suspension point checks a chain of frames on the job's own stack, innermost first, and after the last frame the
// job's own flag:
//
//   shield        nothing further out is visible
//   deadline      passed? CancellationError, which its co_timeout turns into TimeoutError
//   scope         cancelled (a child failed, or Scope.cancel)? its reason
//   bound         nothing: what it surrounds belongs to the job (co_pinned, co_isolated, locks of a generator's body)
//   (the job)     cancelled? its reason
//
// The chain belongs to the job's own carrier. Other threads never change it: they set an atomic flag that it leads to,
// set `JobFlags.signalled` or `.cancelled`, and send the job an interrupt. The handler of the interrupt inspects the
// chain of a parked job and, if the chain is now cancelled, claims the job's wait (JobRecord.swift).

/// A frame of the chain, on the stack of co_timeout, co_shield, co_pinned, co_isolated or a scope.
///
/// A generator's body must have left the frames that it has entered when it yields. A frame of the kind `bound` does
/// nothing else: what it surrounds belongs to the job, as a deadline does, and another job may make the next step.
@usableFromInline
struct CancelFrame: ~Copyable {
  @usableFromInline enum Kind: Sendable { case shield, deadline, scope, bound }
  /// Changed by the locks of a generator's body alone, on the job's own carrier (Generator+Delegation.swift).
  var outer: UnsafeMutablePointer<CancelFrame>?
  let kind: Kind
  /// Whether the deadline has passed, or the scope has been cancelled.
  ///
  /// Set by any thread.
  let isSignalled = Atomic<Bool>(false)
  /// The owner of a `scope` frame, and how to reach it.
  var owner: Owner?
  /// A deadline's timer, and the scheduler whose wheel contains it.
  ///
  /// Accessed on the job's own carrier.
  var timer: (node: UnsafeMutablePointer<TimerNode>, scheduler: Unmanaged<Scheduler>)?

  /// An object that cancels others in the frame's name, such as a scope; called through functions, because this file
  /// does not know its type.
  @usableFromInline
  struct Owner {
    let object: UnsafeRawPointer
    /// Returns the error that a cancelled owner throws inside; called only if `isSignalled`.
    let error: (UnsafeRawPointer) -> any Error
    /// Cancels the owner for a reason from outside the frame.
    let cancel: (UnsafeRawPointer, any Error) -> Void
  }

  init(_ kind: Kind, inside outer: UnsafeMutablePointer<CancelFrame>?) {
    self.kind = kind
    self.outer = outer
  }
}

/// The reason of a job's cancellation.
///
/// The first reason that is stored in the record stays.
@usableFromInline
final class CancelReason: Sendable {
  let error: any Error
  init(_ error: any Error) { self.error = error }

  /// The shared reason of cancellations without one, so that cancelling does not allocate.
  static let none = CancelReason(CancellationError())
  static var noneAddress: UnsafeMutableRawPointer { Unmanaged.passUnretained(none).toOpaque() }
}

/// The owner of a frame to which a cancellation from outside is visible; retained, because the frame may go.
struct ScopeToCancel {
  private let owner: CancelFrame.Owner
  private let object: AnyObject
  private let reason: any Error

  init(_ owner: CancelFrame.Owner, _ reason: any Error) {
    self.owner = owner
    object = Unmanaged<AnyObject>.fromOpaque(owner.object).takeUnretainedValue()
    self.reason = reason
  }

  fileprivate func cancel() { withExtendedLifetime(object) { owner.cancel(owner.object, reason) } }
}

extension [ScopeToCancel] {
  /// Cancels the scopes, and those that their cancellation leads to.
  ///
  /// To cancel a scope cancels its children; one that waits on this thread's scheduler is inspected at once, and may
  /// own scopes itself. Scopes nest as deeply as programs like. So those join the list of the loop under way on this
  /// carrier. Nothing in the loop suspends.
  func cancel() {
    if isEmpty { return }
    // On another thread no inspection is made at once.
    guard let carrier = Carrier.current else { return forEach { $0.cancel() } }
    if let cascade = carrier.pointee.cascade {
      cascade.pointee += self
      return
    }
    var scopes = self
    withUnsafeMutablePointer(to: &scopes) { scopes in
      carrier.pointee.cascade = scopes
      var next = 0
      while next < scopes.pointee.count {
        let scope = scopes.pointee[next]
        next += 1
        scope.cancel()
      }
      carrier.pointee.cascade = nil
    }
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Throws if the job is cancelled here.
  ///
  /// Called on the job's own carrier; usually one relaxed load.
  @inlinable @inline(__always)
  func checkCancelled() throws {
    if pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0, let error = cancellation() {
      throw error
    }
  }

  /// Returns the error that a suspension point must throw, if any.
  ///
  /// A cancellation that a shield hides is passed on to the scopes outside the shield. The interrupt has not done that
  /// if it found the job ready: then the frames may be in use on another worker (JobRecord.swift). Called on the job's
  /// own carrier, or on its scheduler while the job is parked.
  @usableFromInline @inline(never)
  func cancellation() -> (any Error)? {
    guard let error = cancellation(from: pointee.frames) else {
      if pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0 { cancelScopes() }
      return nil
    }
    if let carrier = Carrier.current, carrier.pointee.job == self, let scheduler = carrier.pointee.scheduler {
      scheduler._withUnsafeGuaranteedRef { $0.host.willThrowCancellation(self) }
    }
    return error
  }

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
      case .bound: break
      }
      frame = current.pointee.outer
    }
    return ownCancellation
  }

  /// Cancels the children of every scope to which a cancellation from outside is visible, even if the body does not
  /// check for it, as inside a shield.
  ///
  /// Called where `cancellation` may be called.
  func cancelScopes() {
    scopesToCancel().cancel()
  }

  /// Returns the scopes to which a cancellation from outside is visible.
  ///
  /// Called where `cancellation` may be called. The caller cancels them when it does not use the frames any more:
  /// cancelling a scope may end its children, and with that the wait of this job.
  func scopesToCancel() -> [ScopeToCancel] {
    var scopes: [ScopeToCancel] = []
    var frame = pointee.frames
    while let current = frame {
      if let owner = current.pointee.owner, let reason = cancellation(outside: current) {
        scopes.append(ScopeToCancel(owner, reason))
      }
      frame = current.pointee.outer
    }
    return scopes
  }

  /// Waits until no scheduler inspects the frames of the job, whose wait the caller has claimed.
  func outlastInspection() {
    var wait = ShortWait()
    while hold.isInspected { wait.pause() }
  }

  /// Whether a cancellation is visible to the job; passes nothing on.
  ///
  /// Called where `cancellation` may be called.
  var isCancellationVisible: Bool { cancellation(from: pointee.frames) != nil }

  /// Stores the reason of the job's cancellation; returns false if there is one already, which stays.
  func setCancelReason(_ error: (any Error)?) -> Bool {
    let reason = error.map { Unmanaged.passRetained(CancelReason($0)) } ?? .passUnretained(.none)
    let isFirst = pointee.cancelReason.compareExchange(
      expected: nil,
      desired: reason,
      ordering: .acquiringAndReleasing
    ).exchanged
    if !isFirst, error != nil { reason.release() }
    return isFirst
  }

  /// The reason given to Job.cancel, even if a shield hides it.
  @usableFromInline var ownCancellation: (any Error)? {
    guard pointee.flags.load(ordering: .acquiring) & JobFlags.cancelled != 0 else { return nil }
    return pointee.cancelReason.load(ordering: .acquiring)?._withUnsafeGuaranteedRef { $0.error } ?? CancellationError()
  }

  /// Calls `body`, in which no body of a generator can yield that the running job steps: the yield throws
  /// CoroutineError.yieldInsideScope.
  ///
  /// Without a generic failure: `co_isolated` is not specialised, and with one its calls took 14 % longer (AMD EPYC).
  func whileBound<Output>(_ body: () throws -> Output) rethrows -> Output {
    var frame = CancelFrame(.bound, inside: pointee.frames)
    return try withUnsafeMutablePointer(to: &frame) { frame in
      pointee.frames = frame
      defer { pointee.frames = frame.pointee.outer }
      return try body()
    }
  }

  /// Whether the running job is inside `whileBound`: then it may be isolated to an actor.
  var isBound: Bool {
    var frame = pointee.frames
    while let current = frame {
      if current.pointee.kind == .bound { return true }
      frame = current.pointee.outer
    }
    return false
  }

  /// Calls `body`, in which no cancellation from outside is visible, and values reach the job although it is cancelled.
  func withShield<Output, Failure>(_ body: () throws(Failure) -> Output) throws(Failure) -> Output {
    var frame = CancelFrame(.shield, inside: pointee.frames)
    return try withUnsafeMutablePointer(to: &frame) { frame throws(Failure) in
      pointee.frames = frame
      let wasShielded = setShielded(true)
      defer {
        pointee.frames = frame.pointee.outer
        _ = setShielded(wasShielded)
      }
      return try body()
    }
  }

  /// Sets whether values reach the job although it is cancelled, and returns the previous setting.
  ///
  /// Called on the job's own coroutine.
  func setShielded(_ isShielded: Bool) -> Bool {
    let old =
      isShielded
      ? pointee.flags.bitwiseOr(JobFlags.shielded, ordering: .acquiringAndReleasing).oldValue
      : pointee.flags.bitwiseAnd(~JobFlags.shielded, ordering: .acquiringAndReleasing).oldValue
    return old & JobFlags.shielded != 0
  }

  /// Clears the signal after a frame was removed, unless a remaining frame is cancelled.
  ///
  /// Called on the job's own carrier.
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

// MARK: - Deadlines that move

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Moves the timers of this job's deadlines to another scheduler.
  ///
  /// Called on the job's own carrier.
  func moveDeadlines(to destination: Scheduler) {
    var frame = pointee.frames
    while let current = frame {
      if let (node, old) = current.pointee.timer {
        let isPending = old._withUnsafeGuaranteedRef { $0.take(node) }
        // Fired or not, the old scheduler may have been released when the deadline's frame ends.
        current.pointee.timer = (node, Unmanaged.passUnretained(destination))
        if isPending { destination.add(node, now: destination.clock) }
      }
      frame = current.pointee.outer
    }
  }
}
