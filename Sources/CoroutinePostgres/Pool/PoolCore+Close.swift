#if Postgres
import Coroutine

extension PostgresPool {
  /// Lets no statement begin (`.ended`), waits for those that run, at most `drain`, cancels them, and closes all.
  ///
  /// Suspends until the last one has ended. If cancelled, it closes at once, and throws. A transaction that runs may
  /// finish within `drain`; after that the server is told to stop its statement, and after `cancelTimeout` its
  /// connection is shut down. The last release of a pool that was not closed closes what is idle.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func close(drain: Duration = .seconds(10)) throws {
    // Outside of a coroutine it throws before anything is closed; a cancelled one closes first.
    do { try co_checkCancelled() } catch { if !co_isCancelled { throw error } }
    defer {
      listener.end()
      pipelines.end()
    }
    try core.close(drain: drain, pipelines.untilIdle)
    listener.end()
    pipelines.end()
    do {
      try co_timeout(core.options.cancelTimeout) {
        try listener.untilEnded()
        try pipelines.untilEnded()
      }
    } catch is TimeoutError where !co_isCancelled {}
  }
}

extension Job<Void> {
  /// Suspends until the job has ended, in whatever way: one that was cancelled before it began has failed.
  func untilEnded() throws {
    do { try join() } catch { try co_checkCancelled() }
  }
}

extension PoolCore {
  /// Closes all; `others` waits for statements that are not in `uses`.
  func close(drain: Duration, _ others: () throws -> Void) throws {
    let idle = state.withLock { state in
      if state.phase == .open { state.phase = .closing }
      defer { state.idle = [] }
      state.closed += state.idle.count
      return state.idle
    }
    _ = consume idle
    state.withLock { $0.reaper }?.cancel()
    // Every waiter gets one, and finds the phase.
    permits.release(1 << 20)
    defer { state.withLock { $0.phase = .closed } }
    do {
      do {
        try co_timeout(drain) {
          try waitForUses()
          try others()
        }
        return
      } catch is TimeoutError where !co_isCancelled {}
      cancelUses()
      do {
        try co_timeout(options.cancelTimeout) { try waitForUses() }
        return
      } catch is TimeoutError where !co_isCancelled {}
      shutDownUses()
      _ = try? co_timeout(options.cancelTimeout) { try waitForUses() }
    } catch {
      shutDownUses()
      throw error
    }
  }

  private func waitForUses() throws {
    try co_suspend { (done: Resumer<Void>) in
      let isDone = state.withLock { state -> Bool in
        if state.uses.isEmpty { return true }
        state.closers.append(done)
        return false
      }
      if isDone { done.resume(()) }
    }
  }

  private func cancelUses() {
    let handles = state.withLock { state in state.uses.values.compactMap { $0.wire?.cancel } }
    for handle in handles { co_launch(name: "PostgresPool.close") { try? handle.request() } }
  }

  /// Under the lock, because a connection that is in use there is not closed meanwhile.
  private func shutDownUses() {
    state.withLock { state in for use in state.uses.values { use.wire?.shutDown() } }
  }
}
#endif
