internal import CCoroutine
public import Synchronization

// Settling one promise settles those that wait for it, and those that wait for them: a chain of any length in constant stack.
//
// A promise that has an outcome and waiters goes into the list of the outermost settle on its thread, which tells the waiters of
// one after the other, and calls callbacks when all have been told. The thread's word leads to that list. It is taken away while
// references and closures are released, and while an onCancel or a callback runs: that is foreign code, which may even suspend.
// So for foreign code every settle is an outermost one: when it returns, all that waits has been told.

@usableFromInline
struct SettleList {
  private var first: Unmanaged<AnyPromise>?
  private var last: Unmanaged<AnyPromise>?

  init() {}

  /// With one reference.
  mutating func append(_ promise: Unmanaged<AnyPromise>) {
    promise._withUnsafeGuaranteedRef { $0.settleLink = nil }
    if let last { last._withUnsafeGuaranteedRef { $0.settleLink = promise } } else { first = promise }
    last = promise
  }

  mutating func popFirst() -> Unmanaged<AnyPromise>? {
    guard let promise = first else { return nil }
    first = promise._withUnsafeGuaranteedRef { $0.settleLink }
    if first == nil { last = nil }
    return promise
  }
}

extension AnyPromise {
  /// Publishes an outcome that has been stored; leaves the lock.
  @inlinable @inline(__always)
  final func publish(_ outcome: UInt8) {
    completion.pointee.state.store(outcome, ordering: .releasing)
    if completion.pointee.waiters.first == nil, isUnattached {
      completion.pointee.isReleased = true
      completion.pointee.lock.unlock()
    } else {
      publishSlowly()
    }
  }

  /// Nothing to take out at the end.
  @usableFromInline final var isUnattached: Bool { upstream == nil && !hasMembers && onCancel == nil }

  @usableFromInline
  final func publishSlowly() {
    if isUnattached {
      // One coroutine, as often, needs no list.
      let first = completion.pointee.waiters.first.unsafelyUnwrapped
      if first.pointee.job != nil, first.pointee.next == nil {
        _ = completion.tellWaiters()
        return
      }
      return callWaitersUnlocking()
    }
    // Released after the lock is left: it may hold anything.
    let onCancel = onCancel
    self.onCancel = nil
    let isWaitedFor = completion.pointee.waiters.first != nil
    if !isWaitedFor { completion.pointee.isReleased = true }
    var removed = Removed()
    leaveUpstreams(&removed)
    if isWaitedFor { callWaiters() }
    removed.finish()
    let words = Self.leaveSettleList()
    _ = consume onCancel
    Self.enterSettleList(words)
  }

  /// Fails it, if it is pending.
  @usableFromInline @discardableResult
  final func fail(_ error: any Error, fromOutside: Bool = false) -> Bool {
    completion.pointee.lock.lock()
    guard !completion.isSettled, !(fromOutside && isLocked) else {
      completion.pointee.lock.unlock()
      return false
    }
    let staged = completion.pointee.failure
    completion.pointee.failure = error
    publish(Completion.failed)
    _ = consume staged
    return true
  }

  /// Calls those who wait for a promise that has its outcome; the caller holds the promise, and no lock.
  final func callWaiters() {
    completion.pointee.lock.lock()
    callWaitersUnlocking()
  }

  /// As callWaiters, entered with the lock.
  private final func callWaitersUnlocking() {
    if let words = cco_thread().pointee.settling {
      completion.pointee.lock.unlock()
      words.assumingMemoryBound(to: SettleList.self).pointee.append(Unmanaged.passRetained(self))
    } else {
      settleAll()
    }
  }

  /// Tells those who wait for this promise, then those who wait for what that has settled, and so on; then calls back.
  ///
  /// Entered with the lock, left without. There is no list on this thread.
  @inline(__always)
  private final func settleAll() {
    var (list, called) = (SettleList(), SettleList())
    let hasCallbacks = withUnsafeMutablePointer(to: &list) { list in
      cco_thread().pointee.settling = UnsafeMutableRawPointer(list)
      let hasCallbacks = completion.tellWaiters()
      while let next = list.pointee.popFirst() {
        let isCalled = next._withUnsafeGuaranteedRef { promise in
          promise.completion.pointee.lock.lock()
          return promise.completion.tellWaiters()
        }
        if isCalled {
          called.append(next)
          continue
        }
        cco_thread().pointee.settling = nil
        next.release()
        cco_thread().pointee.settling = UnsafeMutableRawPointer(list)
      }
      cco_thread().pointee.settling = nil
      return hasCallbacks
    }
    if hasCallbacks { completion.callBack() }
    while let next = called.popFirst() {
      next._withUnsafeGuaranteedRef { $0.completion.callBack() }
      next.release()
    }
  }

  /// Gives up a reference in the midst of settling: what that releases is foreign.
  static func giveUp(_ promise: Unmanaged<AnyPromise>) {
    let words = leaveSettleList()
    promise.release()
    enterSettleList(words)
  }

  /// Before foreign code in the midst of settling: closures, and what releasing them runs.
  ///
  /// It may suspend, and what others settle on this thread meanwhile must not wait for a stack that is parked.
  static func leaveSettleList() -> UnsafeMutableRawPointer? {
    let words = cco_thread().pointee.settling
    cco_thread().pointee.settling = nil
    return words
  }

  /// After it, with what leaving has answered; the foreign code may have gone on on another thread.
  static func enterSettleList(_ words: UnsafeMutableRawPointer?) { cco_thread().pointee.settling = words }

  /// In deinit, pending: whoever still waits is told that nobody can settle it any more.
  ///
  /// A reference to it must not be taken any more.
  final func abandon() {
    completion.pointee.lock.lock()
    guard !completion.isSettled, completion.pointee.waiters.first != nil else {
      completion.pointee.lock.unlock()
      return
    }
    completion.pointee.failure = CoroutineError.abandoned
    completion.pointee.state.store(Completion.failed, ordering: .releasing)
    guard cco_thread().pointee.settling != nil else { return settleAll() }
    guard completion.tellWaiters() else { return }
    let words = Self.leaveSettleList()
    completion.callBack()
    Self.enterSettleList(words)
  }
}
