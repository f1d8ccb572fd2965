#if Postgres
internal import CPostgres
import Coroutine
import Synchronization

/// Statements of many coroutines on one connection, without a wait for each other's results.
///
///   caller: lock { append to `outgoing` }; if the permit is free, takes it and sends; suspends; the reader resumes it
///   reader: waits for input, takes the permit: takes what has come, resumes its callers, lets them run, and sends what
///           they have appended meanwhile
///
/// A holder that has sent also takes the results that libpq has read meanwhile (`takeReadAhead`), because nothing wakes
/// the reader for them.
///
/// Only the holder of the permit uses libpq's connection. Statements are appended meanwhile, and the holder sends them
/// together: that makes batches, without a wait for any. The permit, under the lock:
///
///   FREE --a caller has appended, or the reader has input--> TAKEN --`outgoing`, `waiting` are empty--> FREE
///                                                            |  ^ one of `waiting` is resumed, and holds it
///                                                            |  +-----------------------------------------
///                                                            v
///                                                          ENDED by the reader alone: never free again
///
/// Invariants
///  1. At most one coroutine holds the permit. It has set `isTaken` under the lock where it was false, or was taken
///     from `waiting` by the holder before it, which left `isTaken` set and does not use the connection any more. So of
///     those that come at once one wins, and it sees the connection as the last holder has left it.
///  2. `outgoing` has entries only while the permit is taken: a holder frees it only if there are none, and otherwise
///     hands it to one that looks at `outgoing` as well. So no statement stays unsent. The lock is not held over a call
///     of libpq.
///  3. `sent` are the statements that were sent and whose sync was not received, in the order of sending. libpq gives
///     results in the same order, and a sync after each entry. So a result belongs to the first entry.
///  4. Each statement has one sync: it is a separate transaction, and an error ends at its sync.
///  5. After `isBroken` nothing is appended. The reader fails all that is in `sent`, once.
///  6. A connection is retired by the reader, with the permit, when it is too old or no longer the right one: nothing
///     is appended any more, and its statements get their results. It ends when the reader finds none.
/// A holder does not wait, but the reader gives way once, to those that it has resumed: they run before it sends. A
/// resumer is used once: its entry is removed from `outgoing` or `sent` first. If the caller was cancelled, the result
/// is dropped.
final class PipelineWire: @unchecked Sendable {
  // Sound because the holder of the permit alone uses `wire`, `sent`, `batch` and `isFlushing` (invariant 1), and the
  // rest is protected by the lock or atomic.

  /// A statement whose result is to come: an object, because it goes through three lists.
  final class Entry: @unchecked Sendable {
    // Sound because the holder of the permit alone uses the variables.
    /// nil for one of the connection's own.
    let resumer: Resumer<ResultMemory>?
    let statement: SQL
    /// The statement that is being prepared by this entry.
    @exclusivity(unchecked) var key: StatementCache.Key?
    /// The name under which it was prepared before or is being prepared.
    @exclusivity(unchecked) var name: [CChar]?
    @exclusivity(unchecked) var result: ResultMemory?
    @exclusivity(unchecked) var error: PostgresError?

    init(_ resumer: Resumer<ResultMemory>?, _ statement: SQL) { (self.resumer, self.statement) = (resumer, statement) }
  }
  /// The connection takes no statement any more; this one was not sent.
  struct HasEnded: Error {}

  private struct State: Sendable {
    var outgoing: [Entry] = []
    var isTaken = false
    /// Who wants the permit next.
    var waiting: [Resumer<Void>] = []
    var isBroken = false
    var hasEnded = false
  }

  let wire: Wire
  private let state = ThreadMutex(State())
  private let statements = Atomic<Int>(0)
  private let broken = Atomic<Bool>(false)
  private let taken = Atomic<Bool>(false)
  @exclusivity(unchecked) var sent = FirstInFirstOut<Entry>()
  @exclusivity(unchecked) private var batch: [Entry] = []
  @exclusivity(unchecked) var isFlushing = false
  /// Whether it lives, and gets no more statements.
  @exclusivity(unchecked) private(set) var isRetired = false

  init(_ wire: Wire) throws {
    self.wire = wire
    guard PQenterPipelineMode(wire.pg) == 1 else { throw wire.lost() }
  }

  /// Any thread, as a hint: without the lock.
  var isBroken: Bool { broken.load(ordering: .relaxed) }
  /// The statements without a result; whether somebody holds the permit, who sends what is appended; and `isBroken`.
  ///
  /// Any thread, as hints.
  var load: (count: Int, isTaken: Bool, isBroken: Bool) {
    (statements.load(ordering: .relaxed), taken.load(ordering: .relaxed), isBroken)
  }

  /// Sends a statement, and suspends until its result has come; if cancelled, throws at once.
  func run(_ statement: SQL) throws -> ResultMemory {
    try statement.checkValues()
    if statement.isCopy {
      // It would end the connection for all that use it.
      throw PostgresError(.server, "a pipeline has no data for a copy: use copyIn or copyOut of a transaction")
    }
    return try co_suspend { (resumer: Resumer<ResultMemory>) in
      let entry = Entry(resumer, statement)
      let sends = try state.withLock { state -> Bool in
        if state.isBroken { throw HasEnded() }
        state.outgoing.append(entry)
        statements.add(1, ordering: .relaxed)
        return tryAcquire(&state)
      }
      if sends { sendAll() }
    }
  }

  // MARK: The permit

  /// Suspends until the caller holds the permit; false if the connection has ended, and no other coroutine gets it.
  ///
  /// Not cut off by a cancellation, because the permit would be lost. It is short: its holders do not wait.
  func acquire() throws -> Bool {
    if state.withLock({ !$0.hasEnded && tryAcquire(&$0) }) { return true }
    try co_shield {
      try co_suspend { (resumer: Resumer<Void>) in
        let isNow = state.withLock { state -> Bool in
          if state.hasEnded || tryAcquire(&state) { return true }
          state.waiting.append(resumer)
          return false
        }
        if isNow { resumer.resume(()) }
      }
    }
    return !state.withLock { $0.hasEnded }
  }

  /// Gives the caller the permit, if it is free.
  private func tryAcquire(_ state: inout State) -> Bool {
    if state.isTaken { return false }
    state.isTaken = true
    taken.store(true, ordering: .relaxed)
    return true
  }

  /// Sends until nothing is left, and gives the permit on, or frees it; called by its holder.
  func sendAll() {
    while true {
      let (hasMore, next) = state.withLock { state -> (Bool, Resumer<Void>?) in
        if !state.waiting.isEmpty { return (false, state.waiting.removeFirst()) }
        if state.outgoing.isEmpty {
          state.isTaken = false
          taken.store(false, ordering: .relaxed)
          return (false, nil)
        }
        swap(&state.outgoing, &batch)
        return (true, nil)
      }
      guard hasMore else {
        next?.resume(())
        return
      }
      send(batch)
      batch.removeAll(keepingCapacity: true)
    }
  }

  /// Lets nothing be appended any more, if it is too old or leads to the wrong server; returns whether it may end now.
  ///
  /// Called by the reader, with the permit.
  func retireIfNeeded() -> Bool {
    if !isRetired {
      guard !isBroken, wire.isMisplaced || ContinuousClock.now - wire.born > wire.lifetime else { return false }
      isRetired = true
      broken.store(true, ordering: .relaxed)
      state.withLock { $0.isBroken = true }
    }
    return mayEnd
  }

  /// Whether it is retired, and has no statement any more; called by the holder of the permit.
  var mayEnd: Bool { isRetired && sent.isEmpty && state.withLock { $0.outgoing.isEmpty } }

  /// Lets nothing be appended any more, and returns what was not sent.
  func breakOff() -> [Entry] {
    broken.store(true, ordering: .relaxed)
    return state.withLock { state in
      state.isBroken = true
      defer { state.outgoing = [] }
      return state.outgoing
    }
  }

  /// Ends the permit, which no other coroutine gets; called by its holder.
  func endPermit() {
    let waiting = state.withLock { state in
      state.hasEnded = true
      defer { state.waiting = [] }
      return state.waiting
    }
    for next in waiting { next.resume(()) }
  }

  /// Gives a result to the caller of the first statement.
  func finish(_ resumer: Resumer<ResultMemory>?, _ result: Result<ResultMemory, any Error>) {
    guard let resumer else { return }
    statements.subtract(1, ordering: .relaxed)
    resumer.resume(with: result)
  }
}
#endif
