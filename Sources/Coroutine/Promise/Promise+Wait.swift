// Blocking a thread for a promise: for tests, command-line tools, and threads that serve no queue.

extension Promise {
  /// Blocks the calling thread until the promise has settled, and returns its value or throws its error.
  ///
  /// - Throws: The error of the promise. ``CoroutineError/wouldDeadlock``, at once, when called in a coroutine, in a
  ///   handler, or on a queue that a handler on the way to the value needs. A queue that other code needs is not
  ///   detected.
  ///
  /// In the body of a ``co_blocking(_:)`` the thread does not count towards ``CoroutineRuntime/blockingThreadLimit``
  /// while it waits.
  ///
  /// Does not cancel the promise, and cannot be cancelled.
  @discardableResult
  @available(*, noasync, message: "await `value`")
  public final func blockingWait() throws -> Success {
    LockCheck.mayWait()
    if !completion.isSettled { try Host.requireReal { "Promise.blockingWait, which blocks its thread" } }
    // A carrier without a job runs handlers.
    if Carrier.current != nil { throw CoroutineError.wouldDeadlock(because: .blocksCoroutine) }
    if !completion.isSettled {
      if ForkedChild.isHere { throw CoroutineError.afterFork }
      if needsThisThread { throw CoroutineError.wouldDeadlock(because: .blocksHandler) }
      completion.blockThread()
    }
    ignore()
    return try completion.get(as: Success.self)
  }
}

extension AnyPromise {
  /// Called when a coroutine's wait for this promise has thrown.
  ///
  /// Cancels the promise if the coroutine was cancelled, and was the last consumer.
  @usableFromInline @inline(never)
  final func consumerHasFailed() { if co_isCancelled { consumerWasCancelled() } }

  /// Whether a handler that must run before this promise can settle needs the thread that is to be blocked.
  fileprivate final var needsThisThread: Bool {
    // Released at the end, after the lock.
    var held: [Upstreams] = []
    defer { withExtendedLifetime(held) {} }
    // Asked after the lock, because the loop of another library answers by code of its own.
    var schedulers: [ObjectIdentifier: Scheduler] = [:]
    let isHandlerHere = PromiseGraph.lock.pointee.withLock {
      PromiseGraph.find(from: ref, holding: &held) { promise in
        switch promise.settlingTarget {
        case .scheduler(let scheduler, _): schedulers[ObjectIdentifier(scheduler)] = scheduler
        case .ordered(let handlers): return handlers.isRunningHere
        case nil: break
        }
        return false
      }
    }
    return isHandlerHere || schedulers.values.contains { $0.isCurrent }
  }
}

extension PromiseRef {
  /// What runs the handler, or the coroutine of a run, that has to settle this pending promise; nil if there is none.
  fileprivate var settlingTarget: HandlerTarget? {
    completion.lock()
    defer { completion.unlock() }
    guard !completion.known.isSettled,
      node.pointee.upstreams?.run != nil || node.pointee.phase != .free && node.pointee.kind.rawValue != 0
    else { return nil }
    // The handler or the run, which is still to come, keeps the scheduler in memory.
    if let scheduler = node.pointee.scheduler { return .scheduler(scheduler.takeUnretainedValue(), nil) }
    if let ordered = node.pointee.ordered { return .ordered(ordered) }
    return nil
  }
}
