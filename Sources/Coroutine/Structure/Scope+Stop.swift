import Synchronization

extension Scope {
  /// Asks the children to finish, and cancels those that have not ended after `duration`.
  ///
  /// The children, and all coroutines that they have launched in scopes, see ``co_isStopping`` and ``co_stopping``; so
  /// do those that are launched later. A coroutine
  /// that reads neither of them continues until it is cancelled.
  ///
  /// Never suspends; any thread, repeatedly: the earliest end of a duration counts. With a duration of zero or less it
  /// cancels at once. Does nothing after the scope's end.
  public func stop(within duration: Duration) {
    stopSignal.tell()
    guard duration > .zero else { return cancel() }
    let timer = StopTimer(
      co_launch(name: "Scope.stop") { [self] in
        try co_delay(duration)
        cancel()
      }
    )
    lock.lock()
    let isOver = hasEnded
    if !isOver {
      timer.next = stopTimers
      stopTimers = timer
    }
    lock.unlock()
    if isOver { timer.job.cancel() }
  }

  /// Ends what `stop` has begun; called by the owner at the scope's end.
  func endTimers(_ first: StopTimer?) {
    var timer = first
    while let current = timer {
      current.job.cancel()
      timer = current.next
    }
  }

  var isStopping: Bool {
    // The signal may not exist yet.
    stopping.withLock { signal }?.isTold ?? false
  }

  /// The scope's signal, created at the first use.
  var stopSignal: StopSignal {
    if let known = stopping.withLock({ signal }) { return known }
    let mine = StopSignal(inside: enclosing?.stopSignal)
    return stopping.withLock {
      let chosen = signal ?? mine
      signal = chosen
      return chosen
    }
  }

  /// The scope that the owner was launched in; nil after this scope's end.
  ///
  /// Any thread: the owner is held, which may end as soon as the lock is left.
  var enclosing: Scope? {
    let owner: AnyJob? = lock.withLock { hasEnded ? nil : self.owner.handle.takeUnretainedValue() }
    return owner.flatMap { $0.record.enclosingScope }
  }
}

extension Scope: EnclosingScope {
  var joiner: AnyJob? { lock.withLock { hasEnded ? nil : owner.handle.takeUnretainedValue() } }
  var isAboutToCancel: Bool { lock.withLock { stopTimers != nil } }
}

/// A coroutine that will cancel a scope.
final class StopTimer: @unchecked Sendable {
  // Sound because `next` is set under the scope's lock, before any other thread has the object.
  let job: Job<Void>
  @exclusivity(unchecked) var next: StopTimer?
  init(_ job: Job<Void>) { self.job = job }
}

extension JobRef {
  /// The scope that the job was launched in: the callback of its end that the scope has added (`Child`).
  ///
  /// The caller holds the job. A job that has finished is in no scope any more: its end removes the callback.
  var enclosingScope: Scope? {
    let completion = handle._withUnsafeGuaranteedRef { $0.completion }
    // Known: no other use changes the answer.
    return completion.known.lock.withLock {
      let waiter = completion.pointee.waiters.first { $0.pointee.callbackIfAny is ScopeChild }
      return (waiter?.pointee.callbackIfAny as? ScopeChild)?.scope
    }
  }
}
