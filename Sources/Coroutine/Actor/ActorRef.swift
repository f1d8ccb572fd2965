import Synchronization

/// The handle of an actor: who has it can tell the actor things, ask it, and stop it.
///
/// Releasing the last handle stops the actor, as ``stop()`` does.
public final class ActorRef<Message: Sendable>: Sendable {
  @usableFromInline let core: ActorCore<Message>
  /// A supervised actor's supervisor stays as long as somebody can reach the actor.
  private let supervisor: Supervisor?

  init(_ core: ActorCore<Message>) {
    self.core = core
    supervisor = core.supervision.map { Supervisor($0.supervisor) }
    _ = core.handles.wrappingAdd(1, ordering: .relaxed)
  }

  deinit {
    if core.handles.wrappingSubtract(1, ordering: .acquiringAndReleasing).newValue == 0 { core.close() }
  }

  /// The coroutine that runs the actor: to join it, and to see how it ended.
  public var job: Job<Void> { core.job.unsafelyUnwrapped }

  /// The name given at the start.
  public var name: String? { job.name }

  // MARK: Telling

  /// Puts a message into the mailbox.
  ///
  /// Suspends only while a bounded mailbox is full, until the actor has made room; those who wait are served in the order in
  /// which they came. A mailbox that never lets anybody wait may be told by anyone: a coroutine, a Task, a plain thread. One that is
  /// bounded may be told in a coroutine, off one it throws ``CoroutineError/notInCoroutine``; ``tryTell(_:)`` may be used there.
  ///
  /// A cancelled coroutine throws what cancellation throws, also if it need not have waited. Once the actor has been stopped, has been
  /// cancelled or has ended, also while this waits, it throws ``ActorStopped``. Where waiting could never end, because an actor
  /// tells itself and its mailbox is full, it throws ``CoroutineError/wouldDeadlock``. Whenever it throws, the message has gone to the
  /// actor's `onUndelivered`.
  @inlinable
  public func tell(_ message: consuming Message) throws {
    guard let carrier = Carrier.current, let job = carrier.pointee.job else { return try tellOffCoroutine(message) }
    if core.whenFull != .neverWaits, core.whenFull == .fails || job == core.record {
      return try tellWithoutWaiting(message, job)
    }
    do {
      try core.channel.send(.message(message))
    } catch {
      throw actorError(error)
    }
  }

  /// Puts a message into the mailbox if that needs no waiting.
  ///
  /// Never suspends, never throws; any thread, coroutine or not. Refused, the message stays the caller's: `full` where
  /// ``tell(_:)`` would wait, and where the mailbox drops its newest and this is it; `closed` where it would throw
  /// ``ActorStopped``.
  @inlinable
  public func tryTell(_ message: consuming Message) -> TrySend { core.channel.trySend(.message(message)) }

  @usableFromInline @inline(never)
  func tellOffCoroutine(_ message: Message) throws {
    if core.whenFull == .waits {
      core.drop(message)
      throw CoroutineError.notInCoroutine
    }
    try tellWithoutWaiting(message, nil)
  }

  /// Whenever it throws, the message has gone to `onUndelivered`, as with a send.
  @usableFromInline @inline(never)
  func tellWithoutWaiting(_ message: Message, _ job: JobRef?) throws {
    do {
      try job?.checkCancelled()
      switch core.channel.trySend(.message(message)) {
      case .sent: return
      case .closed: throw ActorStopped()
      case .full:
        switch core.whenFull {
        // The mailbox drops its newest, and this is it.
        case .neverWaits: return core.drop(message)
        case .waits: throw CoroutineError.wouldDeadlock(because: .tellsItself)
        case .fails: throw MailboxFull()
        }
      }
    } catch {
      core.drop(message)
      throw error
    }
  }

  // MARK: Ending

  /// Stops the actor: it takes no more messages, handles those that it has, and then its mailbox ends.
  ///
  /// Those who wait to tell it something get ``ActorStopped``. What it still holds unanswered when it has ended fails with the
  /// same. Never suspends; any thread, idempotent. To wait for the end, join ``job``.
  public func stop() { core.close() }

  /// Cancels the actor: it takes no more messages, those that it has are dropped, every question without an answer fails at once with
  /// ``ActorStopped``, and all that its body and its handlers wait for throws.
  ///
  /// Never suspends; any thread, idempotent.
  public func cancel() { core.cancel() }
}

/// What a tell throws for what a send has thrown.
@usableFromInline @inline(never)
func actorError(_ error: any Error) -> any Error { error is ChannelClosed ? ActorStopped() : error }

/// A mailbox was full, and the actor was started with `failsWhenFull`.
public struct MailboxFull: Error, CustomStringConvertible {
  /// Creates the error.
  public init() {}
  /// What to do about it.
  public var description: String {
    "the actor's mailbox is full; tell it less, give it a larger mailbox, or let those who tell it wait"
  }
}
