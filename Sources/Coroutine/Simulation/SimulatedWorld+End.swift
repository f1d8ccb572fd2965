internal import CCoroutine

// The end of a world, after its body: first what can still end without time passing, then a cancellation of the rest.

extension SimulatedWorld {
  /// Runs the coroutines that can end without time passing, so that only those that wait count as left running.
  func settleLeftovers() {
    isEnding = true
    for _ in 0..<100_000 {
      gather()
      guard hasLive, let candidate = takeNext() else { return }
      perform(candidate)
    }
  }

  /// Cancels all remaining coroutines, and runs them to their ends, in order and in virtual time.
  ///
  /// A coroutine that cannot be cancelled stays parked for ever: a stack with live frames is not freed.
  func close() {
    isEnding = true
    isTraced = false
    for _ in 0..<16 {
      for executor in executors { executor.cancelAll() }
      var steps = 0
      while steps < 1_000_000 {
        gather()
        if let candidate = takeNext() {
          perform(candidate)
          steps += 1
        } else if !wakeSettled(), !hasLive || !passTime() {
          break
        }
      }
      if !hasLive { break }
    }
    for executor in executors {
      mount(executor)
      executor.close()
    }
    // The executors own their carriers.
    cco_thread().pointee.carrier = nil
    executors = []
    executorsByQueue = [:]
  }
}
