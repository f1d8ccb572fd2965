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
    let timer = co_launch(name: "Scope.stop") { [self] in
      try co_delay(duration)
      cancel()
    }
    lock.lock()
    let isOver = hasEnded
    if !isOver { stopTimers.append(timer) }
    lock.unlock()
    if isOver { timer.cancel() }
  }

  var isStopping: Bool {
    // The signal may not exist yet.
    stopping.withLock { signal }?.isTold ?? false
  }

  /// The scope's signal, created at the first use, after those of the scopes around it.
  var stopSignal: StopSignal {
    var without: [Scope] = []
    var scope: Scope? = self
    var outer: StopSignal?
    while let current = scope {
      outer = current.stopping.withLock { current.signal }
      if outer != nil { break }
      without.append(current)
      scope = current.enclosing
    }
    while let current = without.popLast() {
      let mine = StopSignal(inside: outer)
      outer = current.stopping.withLock {
        let chosen = current.signal ?? mine
        current.signal = chosen
        return chosen
      }
    }
    return outer.unsafelyUnwrapped
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
  var isAboutToCancel: Bool { lock.withLock { !stopTimers.isEmpty } }
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
