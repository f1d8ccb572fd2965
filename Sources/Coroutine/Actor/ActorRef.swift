import Synchronization

/// The handle of an actor, used to tell it messages, to ask it, and to stop it.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// let stock = startStock()
/// try stock.tell(.add("book", 3))
/// let count = try stock.ask(timeout: .seconds(1)) { .count(of: "book", $0) }
/// ```
///
/// Releasing the last handle stops the actor, as ``stop()`` does.
public final class ActorRef<Message>: Sendable {
  @usableFromInline let core: ActorCore<Message>
  /// The supervisor of a supervised actor, which stays alive while the actor can be reached.
  private let supervisor: Supervisor?

  init(_ core: ActorCore<Message>) {
    self.core = core
    supervisor = core.supervision.map { Supervisor($0.supervisor) }
    _ = core.handles.wrappingAdd(1, ordering: .relaxed)
  }

  deinit {
    if core.handles.wrappingSubtract(1, ordering: .acquiringAndReleasing).newValue == 0 { core.close() }
  }

  /// The coroutine that runs the actor; join it to wait for the end, and to get the failure.
  public var job: Job<Void> { core.job.unsafelyUnwrapped }

  /// The name that was given at the start.
  public var name: String? { job.name }

  // MARK: Telling

  /// Puts a message into the mailbox.
  ///
  /// Suspends only while a bounded mailbox is full. Waiting senders are served in the order in which they came. A
  /// mailbox that never makes a sender wait accepts messages from anywhere: a coroutine, a Task, a plain thread.
  /// Outside a coroutine, ``tryTell(_:)`` serves all mailboxes.
  ///
  /// - Throws: ``ActorStoppedError`` if the actor was stopped, was cancelled or has ended, before or during the wait.
  ///   ``MailboxFullError`` if the actor was started with `failsWhenFull`. ``CoroutineError/wouldDeadlock`` if an actor
  ///   tells itself and its mailbox is full. ``CoroutineError/notInCoroutine`` outside a coroutine if the mailbox can
  ///   make a sender wait. The cancellation error in a cancelled coroutine, even if there is room. Whenever it throws,
  ///   the message has gone to the actor's `onUndelivered`.
  @inlinable
  public func tell(_ message: consuming sending Message) throws {
    guard let carrier = Carrier.current, let job = carrier.pointee.job else { return try tellOffCoroutine(message) }
    if core.whenFull != .neverWaits, core.whenFull == .fails || core.runs(in: job) {
      return try tellWithoutWaiting(message, job)
    }
    do {
      try core.channel.send(.message(message))
    } catch {
      throw actorError(error)
    }
  }

  /// Puts a message into the mailbox if no wait is needed.
  ///
  /// - Returns: `full` if ``tell(_:)`` would wait, or the mailbox drops this message as its newest. `closed` if
  ///   ``tell(_:)`` would throw ``ActorStoppedError``. In both cases the caller keeps the message.
  ///
  /// Never suspends and never throws. May be called on any thread.
  @inlinable
  public func tryTell(_ message: consuming sending Message) -> TrySend { core.channel.trySend(.message(message)) }

  @usableFromInline @inline(never)
  func tellOffCoroutine(_ message: Message) throws {
    if core.whenFull == .waits {
      core.drop(message)
      throw CoroutineError.notInCoroutine
    }
    try tellWithoutWaiting(message, nil)
  }

  /// Whenever this throws, the message has gone to `onUndelivered`, as with a send.
  @usableFromInline @inline(never)
  func tellWithoutWaiting(_ message: Message, _ job: JobRef?) throws {
    do {
      try job?.checkCancelled()
      // Sound because the caller was given the message, and what trySend refuses stays here.
      nonisolated(unsafe) let offered = Envelope.message(message)
      switch core.channel.trySend(offered) {
      case .sent: return
      case .closed: throw ActorStoppedError()
      case .full:
        switch core.whenFull {
        // The mailbox drops its newest message, which is this one.
        case .neverWaits: return core.drop(message)
        case .waits: throw CoroutineError.wouldDeadlock(because: .tellsItself)
        case .fails: throw MailboxFullError()
        }
      }
    } catch {
      core.drop(message)
      throw error
    }
  }

  // MARK: Ending

  /// Stops the actor: it accepts no more messages, handles those in its mailbox, and then its mailbox ends.
  ///
  /// Coroutines that wait to tell it a message get ``ActorStoppedError``. So do asks that have no answer when the actor
  /// has ended. Never suspends. May be called on any thread, and repeatedly. To wait for the end, join ``job``.
  public func stop() { core.close() }

  /// Cancels the actor: its mailbox is closed and emptied, and the waits of its body and handlers throw.
  ///
  /// The messages in the mailbox are dropped. Asks without an answer fail at once with ``ActorStoppedError``. Never
  /// suspends. May be called on any thread, and repeatedly.
  public func cancel() { core.cancel() }
}

// For programs that pass these as functions; see Channel+Functions.swift.
extension ActorRef where Message: Sendable {
  /// Puts a message into the mailbox as ``tell(_:)`` does, for programs that pass it as a function.
  @inlinable @_disfavoredOverload @_documentation(visibility: internal)
  public func tell(_ message: consuming Message) throws { try tell(message) }

  /// Puts a message into the mailbox as ``tryTell(_:)`` does, for programs that pass it as a function.
  @inlinable @_disfavoredOverload @_documentation(visibility: internal)
  public func tryTell(_ message: consuming Message) -> TrySend { tryTell(message) }
}

/// Converts an error of a send to the error of a tell.
@usableFromInline @inline(never)
func actorError(_ error: any Error) -> any Error { error is ChannelClosedError ? ActorStoppedError() : error }

/// The error of a tell to a full mailbox of an actor that was started with `failsWhenFull`.
public struct MailboxFullError: Error, CustomStringConvertible {
  /// Creates the error.
  public init() {}
  /// A sentence that says what to do.
  public var description: String {
    "the actor's mailbox is full; tell it less, give it a larger mailbox, or let those who tell it wait"
  }
}
