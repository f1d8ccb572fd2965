#if Postgres
import Coroutine
import CoroutinePostgres
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
  let onDiscard: @Sendable (any Error) -> Void
  private let stored: ThreadMutex<[UInt8]?>

  init(
    _ claimed: JobTable.Claimed,
    payload: Payload,
    core: QueueCore,
    running: RunningJob,
    onDiscard: @escaping @Sendable (any Error) -> Void
  ) {
    id = claimed.id
    self.payload = payload
    attempt = claimed.attempt
    fence = claimed.fence
    enqueuedAt = claimed.enqueuedAt
    self.core = core
    self.running = running
    self.onDiscard = onDiscard
    stored = ThreadMutex(claimed.checkpoint)
  }

  /// Ends this attempt, and makes the job available later; the attempt does not count.
  ///
  /// Asks the server. Throws always.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func snooze(_ duration: Duration) throws -> Never {
    guard try core.table.snooze(id, fence: fence, delay: duration, core.db) else { throw RunningJob.loss(id) }
    running.move(to: .ended)
    throw AttemptEnded()
  }

  /// Gives the job up, whatever attempts are left.
  ///
  /// Asks the server. Throws always.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func discard(_ reason: String) throws -> Never {
    guard try core.table.discard(id, fence: fence, error: storable(reason), core.db) else { throw RunningJob.loss(id) }
    if running.move(to: .ended) { onDiscard(JobGivenUp(description: reason)) }
    throw AttemptEnded()
  }

  /// Stores up to 64 KiB that the next attempt finds in ``checkpoint``.
  ///
  /// Asks the server. Throws `.leaseLost`.
  ///
  /// Traps if `checkpoint` is larger.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func save(_ checkpoint: [UInt8]) throws {
    precondition(checkpoint.count <= 65_536, "a checkpoint has at most 64 KiB; store a larger one in a table")
    guard try core.table.save(id, fence: fence, checkpoint: checkpoint, core.db) else { throw RunningJob.loss(id) }
    stored.withLock { $0 = checkpoint }
  }

  /// What the last `save` has stored, of this attempt or an earlier one.
  public var checkpoint: [UInt8]? { stored.withLock { $0 } }
}
#endif
