#if Postgres
import Coroutine

// The wait for a permit. Its functions are not inlined, so that the frames of a coroutine that waits are small: many
// wait, and each touches as much of its stack.

extension PoolCore {
  /// Says who holds a connection, or has one made; nil once the pool is closed.
  @inline(never)
  func beginUse() -> Int? {
    let holder = RunningCoroutine.label.map { $0.name ?? "coroutine \($0.id)" } ?? "a coroutine"
    return state.withLock { state -> Int? in
      guard state.phase == .open else { return nil }
      let id = state.newID()
      state.uses[id] = .init(since: .now, holder: holder, wire: nil)
      return id
    }
  }

  @inline(never)
  func waitForPermit(_ start: ContinuousClock.Instant) throws {
    let id = beginWait(start)
    defer { endWait(id) }
    do { try co_timeout(options.acquireTimeout) { try permits.acquire() } } catch { throw failure(of: error) }
  }

  @inline(never)
  private func beginWait(_ start: ContinuousClock.Instant) -> Int {
    state.withLock { state in
      let id = state.newID()
      state.waits[id] = start
      return id
    }
  }

  @inline(never)
  private func endWait(_ id: Int) { state.withLock { _ = $0.waits.removeValue(forKey: id) } }

  @inline(never)
  private func failure(of error: any Error) -> any Error {
    // It may be the reason of a cancellation as well.
    guard error is TimeoutError, !co_isCancelled else { return error }
    let holders = state.withLock { $0.holders(at: .now) }
    return PostgresError(
      .poolTimeout,
      "no connection became free within \(options.acquireTimeout); they are held by: \(holders)"
    )
  }
}
#endif
