import Synchronization

extension Scope {
  /// Tells the children to finish, and cancels those that have not ended after `duration`.
  ///
  /// The children, and all coroutines that they have launched in scopes, see ``co_isStopping`` and ``co_stopping``; so do
  /// those that are launched later. Whoever waits for a signal that never comes is told as well, by
  /// ``co_stopping``: a coroutine that looks at neither works on until it is cancelled.
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
    lock.lock()
    let signal = signal
    lock.unlock()
    return signal?.isTold ?? false
  }

  /// The scope's signal, created at the first use.
  var stopSignal: StopSignal {
    lock.lock()
    let known = signal
    lock.unlock()
    if let known { return known }
    let mine = StopSignal(inside: enclosing?.stopSignal)
    lock.lock()
    if let known = signal {
      lock.unlock()
      return known
    }
    signal = mine
    lock.unlock()
    return mine
  }

  /// The scope that the owner was launched in.
  ///
  /// Called by the owner, by a coroutine that the scope has launched, or under whatever keeps the scope open.
  var enclosing: Scope? { owner.enclosingScope }
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
  /// The caller keeps the job from finishing. The scope waits for the job, so it is open.
  var enclosingScope: Scope? {
    let completion = handle._withUnsafeGuaranteedRef { $0.completion }
    completion.pointee.lock.lock()
    defer { completion.pointee.lock.unlock() }
    var waiter = completion.pointee.waiters.first
    while let current = waiter {
      if current.pointee.job == nil, current.pointee.notify == nil,
        let child = current.pointee.callback.takeUnretainedValue() as? ScopeChild
      {
        return child.scope
      }
      waiter = current.pointee.next
    }
    return nil
  }
}
