public import CCoroutine
public import Synchronization

// Settling a promise settles the promises that wait for it, then the promises that wait for those: a chain of any
// length in constant stack.
//
// A promise that has an outcome and waiters goes into the list of the outermost settle on its thread. That settle calls
// the waiters of one promise after the other. When all waiters have been called, it calls the callbacks. The thread's
// field `settling` points to the list. The field is nil while references and closures are released, and while an
// onCancel or a callback runs: that is foreign code, which may even suspend. So for foreign code every settle is an
// outermost one: when it returns, all waiters have been called.

@usableFromInline
struct SettleList {
  private var first: Unmanaged<AnyPromise>?
  private var last: Unmanaged<AnyPromise>?

  init() {}

  /// Appends a promise, with one reference to it.
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
  /// Publishes an outcome that has been stored, and leaves the lock.
  @inlinable @inline(__always)
  final func publish(_ outcome: UInt8) {
    cco_order_retains()
    completion.known.state.store(outcome, ordering: .releasing)
    if completion.pointee.waiters.first == nil, isUnattached {
      completion.pointee.isReleased = true
      completion.unlock()
    } else {
      publishSlowly()
    }
  }

  /// Whether settling has nothing to take out.
  @usableFromInline final var isUnattached: Bool {
    // Not `== nil`, for which the unoptimised code allocates, under the lock.
    guard case .none = node.pointee.onCancel else { return false }
    return node.pointee.upstream == nil && node.pointee.upstreams == nil && !node.pointee.holdsItself
  }

  @usableFromInline
  final func publishSlowly() {
    guard isUnattached else { return leaveAndTell(isCancelled: false) }
    // One waiting coroutine is the frequent case, and needs no list.
    let first = completion.pointee.waiters.first.unsafelyUnwrapped
    if first.pointee.job != nil, first.pointee.next == nil {
      _ = completion.tellWaiters()
      return
    }
    callWaitersUnlocking()
  }

  /// Rejects the promise if it is pending.
  @usableFromInline @discardableResult
  final func fail(_ error: any Error, fromOutside: Bool = false) -> Bool {
    completion.lock()
    guard !completion.known.isSettled, !(fromOutside && isLocked) else {
      completion.unlock()
      return false
    }
    let staged = completion.pointee.failure
    completion.pointee.failure = error
    publish(Completion.failed)
    _ = consume staged
    return true
  }

  /// Calls the waiters of a promise that has its outcome.
  ///
  /// The caller holds the promise, and no lock.
  final func callWaiters() {
    completion.known.lock.lock()
    callWaitersUnlocking()
  }

  /// Does the same, entered with the lock.
  private final func callWaitersUnlocking() {
    if let words = cco_thread().pointee.settling {
      completion.unlock()
      words.assumingMemoryBound(to: SettleList.self).pointee.append(Unmanaged.passRetained(self))
    } else {
      settleAll()
    }
  }

  /// Calls the waiters of this promise, then the waiters of each promise that this settles; last, the callbacks.
  ///
  /// Entered with the lock, left without. This thread has no settle list yet.
  @inline(__always)
  private final func settleAll() {
    var (list, called) = (SettleList(), SettleList())
    let hasCallbacks = withUnsafeMutablePointer(to: &list) { list in
      cco_thread().pointee.settling = UnsafeMutableRawPointer(list)
      let hasCallbacks = completion.tellWaiters()
      while let next = list.pointee.popFirst() {
        let isCalled = next._withUnsafeGuaranteedRef { promise in
          promise.completion.known.lock.lock()
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
      next._withUnsafeGuaranteedRef { _ = $0.completion.callBack() }
      next.release()
    }
  }

  /// Gives up a reference during settling.
  ///
  /// The release may run foreign code.
  static func giveUp(_ promise: Unmanaged<AnyPromise>) {
    let words = leaveSettleList()
    promise.release()
    enterSettleList(words)
  }

  /// Detaches the settle list before foreign code runs during settling: closures, and the code that their release runs.
  ///
  /// Foreign code may suspend. A promise that another job settles on this thread meanwhile must not wait for a parked
  /// stack.
  static func leaveSettleList() -> UnsafeMutableRawPointer? {
    let words = cco_thread().pointee.settling
    cco_thread().pointee.settling = nil
    return words
  }

  /// Attaches the list that `leaveSettleList` returned.
  ///
  /// The foreign code may have moved to another thread.
  static func enterSettleList(_ words: UnsafeMutableRawPointer?) { cco_thread().pointee.settling = words }

  /// One object, so that none is allocated under a lock.
  static let abandoned: any Error = CoroutineError.abandoned

  /// Rejects a pending promise in its deinit: its waiters learn that nothing can settle it any more.
  ///
  /// A reference to the promise must not be taken any more.
  final func abandon() {
    let error = Self.abandoned
    completion.lock()
    guard !completion.known.isSettled, completion.pointee.waiters.first != nil else {
      completion.unlock()
      return
    }
    completion.pointee.failure = error
    cco_order_retains()
    completion.known.state.store(Completion.failed, ordering: .releasing)
    guard cco_thread().pointee.settling != nil else { return settleAll() }
    guard completion.tellWaiters() else { return }
    let words = Self.leaveSettleList()
    completion.callBack()
    Self.enterSettleList(words)
  }
}
