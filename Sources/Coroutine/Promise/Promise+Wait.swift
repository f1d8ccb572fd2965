import Dispatch

// Blocking a thread for a promise: for tests, command-line tools, and threads that are nobody's queue.

extension Promise {
  /// Blocks the calling thread until the promise has settled, and returns its value or throws its error.
  ///
  /// In a coroutine, in a handler, and on a queue that a handler between here and the value needs, it throws
  /// ``CoroutineError/wouldDeadlock`` at once. What it cannot see is a queue that other code needs in order to settle the promise.
  /// Cancels nothing, and is cancelled by nothing.
  @discardableResult
  public final func wait() throws -> Success {
    // A turn without a job runs handlers.
    if Carrier.current != nil { throw CoroutineError.wouldDeadlock(because: .blocksCoroutine) }
    if !completion.isSettled {
      if ForkedChild.isHere { throw CoroutineError.afterFork }
      if needsThisThread { throw CoroutineError.wouldDeadlock(because: .blocksHandler) }
      let settled = DispatchSemaphore(value: 0)
      if completion.add(ClosureCallback { settled.signal() }) { settled.wait() }
    }
    ignore()
    return try completion.get(as: Success.self)
  }
}

extension AnyPromise {
  /// Whether a handler that has yet to run, on the way to this promise, could not run while this thread is blocked.
  fileprivate final var needsThisThread: Bool {
    var held = Held()
    defer { held.giveUp() }
    completion.pointee.lock.lock()
    return Self.find(from: Unmanaged.passUnretained(self), &held) { $0.handlerNeedsThisThread }
  }

  /// Under its lock: as long as it is pending, and has a handler to run, that holds the scheduler.
  private final var handlerNeedsThisThread: Bool {
    guard !completion.isSettled, phase != .free, !kind.isEmpty else { return false }
    if let scheduler { return scheduler._withUnsafeGuaranteedRef { $0.isCurrent } }
    return ordered?.isRunningHere ?? false
  }
}
