#if Postgres
import Coroutine
public import CoroutinePostgres
public import FoundationEssentials

/// A job that is being run.
///
/// Its methods may be used by the handler and its children, until the handler ends.
public final class WorkJob<Payload: Codable & Sendable>: Sendable {
  /// The job's number: the key for receivers that must know a repetition.
  public let id: Int64
  /// What is to be done.
  public let payload: Payload
  /// 1 for the first.
  public let attempt: Int
  /// Grows with each claim, of any job; for stores that refuse older ones.
  public let fence: Int64
  /// When the job was added.
  public let enqueuedAt: Date
  let core: QueueCore
  let running: RunningJob
  private let hasKey: Bool
  let onDiscard: OnDiscard?
  private let onEvent: @Sendable (WorkEvent) -> Void
  private let stored: ThreadMutex<[UInt8]?>

  /// What is written with the end of a job that is given up.
  typealias OnDiscard = @Sendable (WorkJob, any Error, PostgresTransaction) throws -> Void

  init(
    _ claimed: JobTable.Claimed,
    payload: Payload,
    core: QueueCore,
    running: RunningJob,
    onDiscard: OnDiscard?,
    onEvent: @escaping @Sendable (WorkEvent) -> Void
  ) {
    id = claimed.id
    self.payload = payload
    attempt = claimed.attempt
    fence = claimed.fence
    enqueuedAt = claimed.enqueuedAt
    hasKey = claimed.key != nil
    self.core = core
    self.running = running
    self.onDiscard = onDiscard
    self.onEvent = onEvent
    stored = ThreadMutex(claimed.checkpoint)
  }

  /// Ends this attempt, and makes the job available later; the attempt does not count.
  ///
  /// Asks the server. Throws always.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func snooze(_ duration: Duration) throws -> Never {
    try end(.snooze, wait: duration)
    running.move(to: .ended)
    if duration > .zero { core.station.expect(after: duration) } else { core.wake() }
    throw AttemptEnded()
  }

  /// Gives the job up, whatever attempts are left.
  ///
  /// Asks the server. Throws always. The worker's `onDiscard` runs in the transaction that ends the job; if it throws,
  /// that error is thrown, and the attempt has failed.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func discard(_ reason: String) throws -> Never {
    let error = JobGivenUp(description: reason)
    if let onDiscard {
      guard try giveUp(.discard, error, onDiscard) != nil else { throw RunningJob.loss(id) }
    } else {
      try end(.discard, error: storable(reason))
    }
    if running.move(to: .ended) { onEvent(.discarded(id, error)) }
    throw AttemptEnded()
  }

  /// Ends the job as given up, with the effects of `onDiscard`, in one transaction; returns the state that follows, or
  /// nil if the job was not held any more.
  ///
  /// Asks the server. A job that was cancelled meanwhile, and so is not given up, has no effects.
  func giveUp(_ kind: JobEnd.Kind, _ error: any Error, _ onDiscard: OnDiscard) throws -> String? {
    var state: String?
    do {
      try core.db.transaction(retries: 3) { t in
        state = nil
        guard try core.table.lock(id, fence: fence, t) else { return }
        try onDiscard(self, error, t)
        state = try core.table.end([JobEnd(id: id, fence: fence, kind: kind, error: errorText(error))], t)[id]
        if state != "discarded" { throw NotGivenUp() }
      }
      return state
    } catch is NotGivenUp {
      return try co_await(core.station.ends.send(JobEnd(id: id, fence: fence, kind: kind, error: errorText(error))))
    }
  }

  /// Extends the lease now: before an effect outside that must not happen twice.
  ///
  /// Asks the server. If it returns, the job is this attempt's for another whole lease, unless clocks jump or this
  /// program stands still.
  /// - Throws: `.leaseLost` if the job belongs to another worker by now, or was cancelled.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func renew() throws {
    let lease = core.options.usedLease
    let asked = ContinuousClock.Instant.steady
    // Bounded, because the row may be locked for long.
    guard try co_timeout(lease / 3, { try core.table.renew(id, fence: fence, lease: lease, core.db.reserve) }) else {
      // Ends a job whose cancellation was asked for.
      _ = try? core.table.extend([(id, fence)], lease: lease, core.db.reserve)
      running.lose(telling: onEvent)
      throw RunningJob.loss(id)
    }
    running.extend(until: asked + lease)
  }

  private func end(_ kind: JobEnd.Kind, wait: Duration = .zero, error: String = "") throws {
    let end = JobEnd(id: id, fence: fence, kind: kind, wait: wait, error: error)
    if try co_await(core.station.ends.send(end)) == nil { throw RunningJob.loss(id) }
  }

  /// Stores up to 64 KiB that the next attempt finds in ``checkpoint``.
  ///
  /// Asks the server.
  /// - Throws: `.leaseLost`; `.decoding` if `checkpoint` is larger, and nothing was stored.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func save(_ checkpoint: [UInt8]) throws {
    if checkpoint.count > 65_536 {
      let rule = "a checkpoint has at most 65536 bytes, and this one \(checkpoint.count)"
      throw PostgresError(.decoding, rule + "; store a larger one in a table")
    }
    guard try core.table.save(id, fence: fence, checkpoint: checkpoint, core.db) else { throw RunningJob.loss(id) }
    stored.withLock { $0 = checkpoint }
  }

  /// What the last `save` has stored, of this attempt or an earlier one.
  public var checkpoint: [UInt8]? { stored.withLock { $0 } }
}

// MARK: - Finishing

// Why effects are there once.
//  1. The transaction of a finish locks the row with this fence in the state `running`, and leaves that state.
//  2. While it holds the lock no claim and no rescue takes the row: they skip locked rows. So the fence cannot change
//     between the check and the COMMIT.
//  3. A second finish with the same fence, by another child of the handler, waits for the row at its own last
//     statement, finds it completed, and is rolled back with its effects.
//  4. If the COMMIT's answer is lost, the row is read with a lock that waits for the lost transaction. Completed with
//     this fence: it has committed. Running with this fence: it has not, and never will.

extension WorkJob {
  /// Completes the job and commits `effects`, in one transaction.
  ///
  /// Asks the server.
  ///
  /// First it locks the job's row, and checks the fence. So if this returns, the effects are there once, and no other
  /// attempt's are. The body may run again after a serialization failure, 3 times.
  /// - Throws: `.leaseLost`, before `effects` runs, if the job is no longer this worker's; what `effects` throws.
  ///   After a loss during COMMIT the job's row tells the outcome; while it cannot be read, `.commitUnknown`: return
  ///   then.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func finish<R>(_ effects: (PostgresTransaction) throws -> R) throws -> R {
    guard running.move(to: .finishing) else { throw RunningJob.loss(id) }
    let isDeleted = core.options.keepCompleted <= .zero
    var value: R?
    do {
      let done = try core.db.transaction(retries: 3) { t in
        guard try core.table.lock(id, fence: fence, t) else { throw RunningJob.loss(id) }
        let done = try effects(t)
        guard try core.table.complete(id, fence: fence, hasKey: hasKey, isDeleted: isDeleted, t) else {
          throw RunningJob.loss(id)
        }
        value = done
        running.giveRoomEarly()
        return done
      }
      running.move(to: .completed)
      return done
    } catch let error as PostgresError where error.kind == .commitUnknown {
      switch try? core.outcome(running, isDeleted: isDeleted) {
      case .committed:
        running.move(to: .completed)
        if let value { return value }
        throw error
      case .notCommitted:
        running.move(to: .held)
        throw PostgresError(.lost, "the connection was lost, and nothing was committed: \(error.message)")
      case .lost, .gone:
        running.move(to: .held)
        throw RunningJob.loss(id)
      case nil:
        // The worker finds out when the handler has returned.
        running.move(to: .unknown)
        throw error
      }
    } catch {
      running.move(to: .held)
      throw error
    }
  }
}

extension QueueCore {
  /// What has become of a finish whose COMMIT was lost.
  ///
  /// Asks the server.
  func outcome(_ job: RunningJob, isDeleted: Bool) throws -> JobTable.Outcome {
    // Not on a connection of the reserve: it waits for as long as the lost transaction takes to end.
    let found = try db.transaction(retries: 3) { t in try table.outcome(job.id, fence: job.fence, t) }
    // Only the holder deletes it; and before the end of the lease, that is this worker.
    return found == .gone && isDeleted && ContinuousClock.Instant.steady < job.until ? .committed : found
  }
}

// MARK: - A claim that is held

// A claim that this program holds, or has held.
//
// States:   held ──the handler's finish begins──▶ finishing ──▶ completed, held, or unknown if its COMMIT was lost
//           held ──snooze, discard, report──▶ ended or completed      held ──lease lost──▶ lost
// `completed`, `ended` and `lost` are final; the first of them wins, under the lock. While a finish runs, an
// extension may miss the row because the finish has committed. So it is then not taken for a loss: the finish itself
// finds out.

final class RunningJob: Sendable {
  enum Phase { case held, finishing, unknown, completed, ended, lost }
  private struct State {
    var phase = Phase.held
    var until: ContinuousClock.Instant
    var coroutine: AnyJob?
    var hasBegun = false
    /// What the next claim needs (Worker.swift); nil once it was given back.
    var room: FairSemaphore?
  }
  let id: Int64
  let fence: Int64
  private let state: ThreadMutex<State>
  private let isRoomEarly: Bool

  /// Creates a claim that has a permit of `room`.
  ///
  /// - Parameters:
  ///   - until: A time before the end of the lease, by this program's steady clock.
  ///   - isRoomEarly: Whether the permit is given back when only a COMMIT or a report is left.
  init(_ id: Int64, fence: Int64, until: ContinuousClock.Instant, room: FairSemaphore, isRoomEarly: Bool) {
    self.id = id
    self.fence = fence
    self.isRoomEarly = isRoomEarly
    state = ThreadMutex(State(until: until, room: room))
  }

  var phase: Phase { state.withLock { $0.phase } }
  var until: ContinuousClock.Instant { state.withLock { $0.until } }
  func extend(until end: ContinuousClock.Instant) { state.withLock { $0.until = end } }

  /// Says which coroutine a loss is to cancel.
  func runs(in coroutine: AnyJob) {
    let isLost = state.withLock { state in
      state.coroutine = coroutine
      return state.phase == .lost && state.hasBegun
    }
    if isLost { coroutine.cancel(Self.loss(id)) }
  }

  /// Called first by that coroutine; returns false if the job is lost.
  ///
  /// Before that a loss cancels nothing: the body of a coroutine that is cancelled before it begins does not run, and
  /// would give nothing back.
  func begin() -> Bool {
    state.withLock { state in
      state.hasBegun = true
      return state.phase != .lost
    }
  }

  /// Lets the worker claim another job in place of this one, once.
  func giveRoom() { state.withLock { $0.room.take() }?.release() }

  /// The same, if only a COMMIT or a report is left, and this job may do so before its end.
  func giveRoomEarly() { if isRoomEarly { giveRoom() } }

  /// Lets the coroutine go, which refers to this object.
  func end() { state.withLock { $0.coroutine = nil } }

  /// Moves on; false if the phase is final.
  @discardableResult
  func move(to next: Phase) -> Bool {
    state.withLock { state in
      guard ![.lost, .ended, .completed].contains(state.phase) else { return false }
      state.phase = next
      return true
    }
  }

  /// Cancels the handler, unless the job has ended or is being finished; returns whether it did.
  func lose() -> Bool {
    let (isMine, coroutine) = state.withLock { state -> (Bool, AnyJob?) in
      guard state.phase == .held else { return (false, nil) }
      state.phase = .lost
      return (true, state.hasBegun ? state.coroutine : nil)
    }
    coroutine?.cancel(Self.loss(id))
    return isMine
  }

  /// Does the same, and tells of it.
  func lose(telling onEvent: (WorkEvent) -> Void) { if lose() { onEvent(.leaseLost(id)) } }

  static func loss(_ id: Int64) -> PostgresError {
    PostgresError(.leaseLost, "job \(id) belongs to another worker by now, or may do so")
  }
}

/// Thrown by `snooze` and `discard`: the attempt has ended already.
struct AttemptEnded: Error {}

/// Undoes the effects of a job that was to be given up, and was not.
private struct NotGivenUp: Error {}

/// Why a handler has given a job up.
struct JobGivenUp: Error, CustomStringConvertible {
  var description: String
}
#endif
