#if Postgres
import Coroutine
import Synchronization

/// The connections of a pool's pipeline; made when they are needed, and again after a loss.
///
/// A statement goes to the connection with the fewest statements under way. Connections are made one after the other,
/// under `making`, so coroutines that find none wait for the first one.
final class PipelineGroup: PostgresSession, Sendable {
  private struct State: Sendable {
    var wires: [PipelineWire] = []
    var readers: [Job<Void>] = []
    var isEnded = false
  }

  private let core: PoolCore
  private let state = ThreadMutex(State())
  private let making = FairMutex()
  /// Who is in `run`.
  ///
  /// Counted before the pool's phase is read under its lock. So a close, which sets the phase under that lock, sees the
  /// count of everybody who has found the pool open.
  private let callers = Atomic<Int>(0)

  init(_ core: PoolCore) { self.core = core }

  @discardableResult
  func run(_ statement: SQL) throws -> PostgresRows {
    if core.options.isPooledByTransaction {
      throw PostgresError(.ended, "a pooler in transaction mode has no pipeline: isPooledByTransaction is set")
    }
    try co_checkCancelled()
    callers.add(1, ordering: .relaxed)
    defer { callers.subtract(1, ordering: .relaxed) }
    if core.state.withLock({ $0.phase != .open }) { throw PoolCore.ended }
    var outdated = 0
    while true {
      let wire = try take()
      do { return PostgresRows(try wire.run(statement)) } catch is PipelineWire.HasEnded {
        // Nothing was sent.
        if core.state.withLock({ $0.phase != .open }) { throw PoolCore.ended }
      } catch is NeedsConnection {
        // On one of the pool's connections, which is reset after it.
        return PostgresRows(try core.with { try $0.run(statement) })
      } catch let error as PostgresError
        where error.isOutdated && !statement.mayCommitInside && outdated < state.withLock({ $0.wires.count })
      {
        // It has not run, and may be as old on each of the others.
        outdated += 1
      }
    }
  }

  /// The connection with the fewest statements; another one while there are fewer than wanted and all have some.
  private func take() throws -> PipelineWire {
    if let wire = ready() { return wire }
    return try making.withLock {
      if let wire = ready() { return wire }
      let wire = try core.connect(until: .now + core.options.acquireTimeout)
      let new: PipelineWire
      do { new = try PipelineWire(wire) } catch {
        core.state.withLock { $0.closed += 1 }
        throw error
      }
      let core = self.core
      // Begins at once: a cancellation before the begin would end it without telling the callers.
      let reader = co_launch(name: "PostgresPool.pipeline reads", start: .immediate) {
        new.read()
        core.state.withLock { $0.closed += 1 }
      }
      let isEnded = state.withLock { state in
        state.wires.append(new)
        state.readers.removeAll(where: \.isFinished)
        state.readers.append(reader)
        return state.isEnded
      }
      if isEnded {
        reader.cancel()
        throw PoolCore.ended
      }
      return new
    }
  }

  /// The connection to take; nil if another one is to be made.
  ///
  /// The best is one without statements. Otherwise one whose statements are just being put together: there the next
  /// one costs no system call of its own, which is worth a place behind a few others. The numbers are hints: of
  /// statements that come at once, several may take the same connection.
  private func ready() -> PipelineWire? {
    state.withLock { state in
      var (best, least, hasIdle, hasBroken) = (-1, Int.max, false, false)
      for index in state.wires.indices {
        let (count, isTaken, isBroken) = state.wires[index].load
        if isBroken {
          hasBroken = true
          continue
        }
        if count == 0 { hasIdle = true }
        let rank = isTaken ? (count == 0 ? -1 : max(1, count - Self.nearby)) : count
        if rank < least { (best, least) = (index, rank) }
      }
      let found = best < 0 ? nil : state.wires[best]
      if hasBroken { state.wires.removeAll { $0.isBroken } }
      return hasIdle || state.wires.count >= max(1, core.options.pipelines) ? found : nil
    }
  }

  /// How many statements more a connection may have than another one, and be taken nevertheless.
  private static let nearby = 8

  /// Suspends until no statement is under way.
  ///
  /// Looks again and again: statements are counted by atomics alone, because a count under a lock costs each of them.
  func untilIdle() throws {
    while callers.load(ordering: .relaxed) > 0
      || state.withLock({ $0.wires.contains { !$0.isBroken && $0.load.count > 0 } })
    {
      try co_delay(.milliseconds(2))
    }
  }

  /// Suspends until the connections have ended, after `end`.
  func untilEnded() throws {
    for reader in state.withLock({ $0.readers }) { try reader.untilEnded() }
  }

  /// Ends the connections; statements under way get `.lost`.
  ///
  /// Any thread; never suspends.
  func end() {
    let readers = state.withLock { state in
      state.isEnded = true
      return state.readers
    }
    for reader in readers { reader.cancel() }
  }
}

extension PostgresPool {
  /// Statements of all coroutines on few connections, one after the other, without a wait for each other's results.
  ///
  /// Each is a separate transaction, and an error is its caller's alone. For short statements: a slow one delays the
  /// next ones. A cancelled caller throws at once; its statement runs nevertheless. After a loss all get `.lost`. One
  /// that changes the session, as SET does, runs on another connection, and is undone there.
  public var pipeline: any PostgresSession { memory == nil ? pipelines : self }
}
#endif
