import Synchronization

// The callbacks of a completion: linked, unlinked, and made from closures. Completion.swift has the invariants.

extension CompletionRef {
  /// Links a callback and retains it; returns false if the completion is settled, and the callback will not be called.
  ///
  /// After `touch`, unless a world knows the use.
  @usableFromInline
  func add(_ callback: WaitCallback, observes: WaitCallback.Observes = .yes) -> Bool {
    callback.observes = observes
    known.lock.lock()
    defer { unlock() }
    guard !pointee.isReleased || pointee.isCalling || pointee.waiters.first != nil else {
      if observes != .no { pointee.isObserved.store(true, ordering: .relaxed) }
      return false
    }
    _ = Unmanaged.passRetained(callback)
    pointee.waiters.append(callback.waiter)
    return true
  }

  /// Unlinks a callback; returns true if it was linked and will not be called.
  @usableFromInline
  func remove(_ callback: WaitCallback) -> Bool {
    lock()
    let wasLinked = callback.waiter.pointee.isLinked
    if wasLinked { pointee.waiters.remove(callback.waiter) }
    unlock()
    if wasLinked { Unmanaged.passUnretained(callback).release() }
    return wasLinked
  }

  enum Removal { case removed, isLast, hasFired }

  /// Unlinks a callback if another consumer of the outcome is linked: a job, a promise or an observing callback.
  func removeUnlessLast(_ callback: WaitCallback) -> Removal {
    lock()
    guard callback.waiter.pointee.isLinked else {
      unlock()
      return .hasFired
    }
    guard pointee.waiters.hasConsumer(otherThan: callback.waiter) else {
      unlock()
      return .isLast
    }
    pointee.waiters.remove(callback.waiter)
    unlock()
    Unmanaged.passUnretained(callback).release()
    return .removed
  }
}

extension WaitQueue {
  /// Whether a waiter other than `one` takes the outcome.
  fileprivate func hasConsumer(otherThan one: UnsafeMutablePointer<Waiter>) -> Bool {
    first { $0 != one && $0.pointee.callbackIfAny?.observes != .no } != nil
  }
}

/// A callback from a closure.
@usableFromInline
final class ClosureCallback: WaitCallback, @unchecked Sendable {
  // Sound because it is taken once, by the firing thread.
  @exclusivity(unchecked) private var body: (() -> Void)?
  private let runsUsersCode: Bool

  init(isForeign: Bool = false, _ body: @escaping () -> Void) {
    runsUsersCode = isForeign
    self.body = body
    super.init()
  }

  override var isForeign: Bool { runsUsersCode }

  @usableFromInline override func fire() { body.take()?() }
}
