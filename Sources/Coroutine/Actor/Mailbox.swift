import Synchronization

/// The receiving side of an actor's mailbox.
///
/// Only the body and the coroutine that runs it may use it. A loop over ``receive()``, or ``forEach(_:)``, handles the
/// messages; both throw a cancellation, so what follows the loop runs only if every message was handled.
public final class Mailbox<Message> {
  @usableFromInline let core: ActorCore<Message>
  let scope: Scope

  init(_ core: ActorCore<Message>, _ scope: Scope) {
    self.core = core
    self.scope = scope
  }

  /// Receives the next message.
  ///
  /// - Returns: The message, or nil once the actor has been stopped and has handled all messages.
  /// - Throws: The cancellation error, once the actor is cancelled.
  ///
  /// Suspends until there is a message.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func receive() throws -> sending Message? {
    let (carrier, job) = try Carrier.beginWaiting()
    if core.extras != nil {
      // Sound because a stash and a timer were given their message; one that fires repeatedly has a Sendable message.
      nonisolated(unsafe) let message = try receiveAmongExtras()
      return message
    }
    return try core.channel.next(carrier, job)?.message
  }

  /// Calls `handle` with each message, one at a time, until the actor is stopped and has handled all of them.
  ///
  /// - Throws: The cancellation error, once the actor is cancelled, or the error of `handle`. So the code after it runs
  ///   only if every message was handled.
  ///
  /// Suspends for each message as ``receive()`` does.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func forEach(_ handle: (sending Message) throws -> Void) throws {
    while let message = try receive() { try handle(message) }
  }

  /// A handle of this actor, to give to other code.
  ///
  /// An actor that keeps a handle of itself is not stopped when all others are released: the holder may still tell it a
  /// message.
  public var actor: ActorRef<Message> { ActorRef(core) }

  /// Launches work that runs concurrently with the next messages, on the actor's queue.
  ///
  /// The work may wait without delaying other messages.
  ///
  /// ```swift
  /// while let request = try mailbox.receive() {
  ///   switch request {
  ///   case .fetch(let url, let reply): mailbox.launch { reply(try fetch(url)) }
  ///   case .count(let reply): reply(count)
  ///   }
  /// }
  /// ```
  ///
  /// The work is a child of the actor: a stopped actor ends after it, a cancelled actor cancels it, and its failure is
  /// the actor's. Does not suspend. Called by the body; after the body's end it traps.
  @discardableResult
  public func launch<Success: Sendable>(
    name: String? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ work: sending @escaping () throws -> Success
  ) -> Job<Success> {
    scope.launch(name: name, file: file, line: line, work)
  }
}

// MARK: - Timers and the stash

/// The messages that an actor may receive in addition to its channel's: stashed messages, and those of its own timers.
///
/// All of it is used only on the actor's own coroutine. So nothing is locked, no message is in two collections, and a
/// cancelled timer delivers no message.
///
///   sent --- receive ---> handled
///              |   \--- stash ---> STASHED --- unstash, or the next life ---> FRONT --- receive ---> handled
///   TIMER --- due, receive ---> handled
@usableFromInline
final class MailboxExtras<Message> {
  struct Timer {
    let number: Int
    var due: UInt64
    /// Nil for a timer that fires once.
    let interval: UInt64?
    let message: Message
  }

  /// The messages that come before all messages of the channel, in order.
  var front = Ring<Message>(capacity: 0)
  var stashed: [Message] = []
  /// In the order in which they are due.
  ///
  /// Timers with the same time are in the order of starting.
  private var timers: [Timer] = []
  private var lastNumber = 0
  /// While messages of timers are delivered one after the other: those are that were due by this time.
  var dueBy: UInt64?

  var isEmpty: Bool { front.count == 0 && stashed.isEmpty }

  func takeAll() -> [Message] {
    unstash()
    var messages: [Message] = []
    front.removeAll(into: &messages)
    return messages
  }

  /// Takes the first message of those that come before all others; a burst gives its memory back with the last one.
  func takeFirst() -> Message {
    defer { if front.count == 0, front.isLarge { front = Ring(capacity: 0) } }
    return front.removeFirst()
  }

  /// Moves the stashed messages to the front, in order.
  func unstash() {
    front.makeRoom(for: stashed.count)
    for message in stashed.reversed() { front.prepend(message) }
    stashed = []
  }

  func prepareNextLife() {
    unstash()
    timers = []
    dueBy = nil
  }

  // MARK: Timers

  var nextDue: UInt64? { timers.first?.due }

  func start(_ message: Message, due: UInt64, interval: UInt64?) -> Int {
    lastNumber += 1
    insert(Timer(number: lastNumber, due: due, interval: interval, message: message))
    return lastNumber
  }

  func cancel(_ number: Int) -> Bool {
    guard let index = timers.firstIndex(where: { $0.number == number }) else { return false }
    timers.remove(at: index)
    return true
  }

  /// Removes a timer that is due, and returns its message.
  ///
  /// A repeating timer is next due at the first multiple of its interval that is still to come. So an actor that was
  /// busy for long does not get the same message many times.
  func takeDue(_ now: UInt64) -> Message? {
    guard let first = timers.first, first.due <= now else { return nil }
    timers.removeFirst()
    if let interval = first.interval {
      var next = first
      next.due += interval * ((now - first.due) / interval + 1)
      insert(next)
    }
    return first.message
  }

  private func insert(_ timer: Timer) {
    let index = timers.firstIndex { $0.due > timer.due } ?? timers.endIndex
    timers.insert(timer, at: index)
  }
}

extension ActorCore {
  /// The extras, created if necessary.
  ///
  /// Used on the actor's own coroutine.
  var madeExtras: MailboxExtras<Message> {
    if let extras { return extras }
    let made = MailboxExtras<Message>()
    extras = made
    return made
  }
}

extension Mailbox {
  /// Receives the message of a due timer first, then an unstashed message, then a message of the channel.
  ///
  /// Timers that are due again and again do not starve the others: after the messages of all timers that are due at one
  /// time, an unstashed message or one of the channel is received, if there is one.
  @usableFromInline
  func receiveAmongExtras() throws -> Message? {
    let extras = core.madeExtras
    while true {
      // A stopped actor gets no timer's message after its last message.
      if extras.front.count == 0, core.channel.isClosed, core.channel.count == 0 { return nil }
      let limit = extras.dueBy ?? clock
      if let message = extras.takeDue(limit) {
        extras.dueBy = limit
        return message
      }
      let isAfterTimers = extras.dueBy != nil
      extras.dueBy = nil
      if extras.front.count > 0 { return extras.takeFirst() }
      if isAfterTimers {
        if case .received(let next) = core.channel.tryReceive() { return next.message }
        continue
      }
      do {
        return try receive(before: extras.nextDue)
      } catch is TimeoutError {
        // Either this deadline has passed, or the actor was cancelled with a TimeoutError as the reason. In the second
        // case the check throws: otherwise each round of the loop would get the error again, at once.
        let (_, job) = try Carrier.requireJob()
        try job.checkCancelled()
      }
    }
  }

  /// Receives a message of the channel; throws `TimeoutError` if none comes before `due`.
  private func receive(before due: UInt64?) throws -> Message? {
    let now = clock
    func next() throws -> Message? {
      let (carrier, job) = try Carrier.requireJob()
      return try core.channel.next(carrier, job)?.message
    }
    guard let due else { return try next() }
    return try withDeadline(after: .nanoseconds(Int64(clamping: due > now ? due - now : 0)), called: nil, next)
  }

  var clock: UInt64 { core.clock }
}

/// A timer of an actor; see ``Mailbox/schedule(_:after:)``.
public struct ActorTimer: Sendable, Hashable {
  let number: Int
}

extension Mailbox {
  /// Delivers `message` to the actor after `delay`, never early, before the messages that others have sent.
  ///
  /// Between the messages of timers that are due at one time, and those of timers that are due later, one of the other
  /// messages is received.
  ///
  /// ```swift
  /// let deadline = mailbox.schedule(.giveUp, after: .seconds(30))
  /// ```
  ///
  /// Nothing is sent: `receive` reads the clock. So a timer wakes an actor that waits for a message; an actor that is
  /// busy gets the message at its next receive. A stopped actor gets no timer message after its last message. When a
  /// supervisor restarts the actor, its timers are cancelled. Does not suspend. Called by the body. Linear in the
  /// number of timers.
  ///
  /// - Parameters:
  ///   - message: The message.
  ///   - delay: The time from now; zero or less delivers it at the next receive.
  /// - Returns: The timer, for ``cancel(_:)``.
  @discardableResult
  public func schedule(_ message: sending Message, after delay: Duration) -> ActorTimer {
    let due = delay > .zero ? delay.deadline(after: clock) : clock
    return ActorTimer(number: core.madeExtras.start(message, due: due, interval: nil))
  }

  /// Delivers `message` to the actor repeatedly, at the multiples of `interval` from now.
  ///
  /// Multiples that have passed while the actor was busy count once. Traps if the interval is not positive. The message
  /// is Sendable, because it is received repeatedly. In all other respects it behaves as ``schedule(_:after:)`` does.
  ///
  /// - Parameters:
  ///   - message: The message.
  ///   - interval: The time between two deliveries.
  /// - Returns: The timer, for ``cancel(_:)``.
  @discardableResult
  public func schedule(_ message: Message, every interval: Duration) -> ActorTimer where Message: Sendable {
    if interval <= .zero { misuse("A timer cannot go off every \(interval): give an interval longer than nothing.") }
    let now = clock
    let due = interval.deadline(after: now)
    return ActorTimer(number: core.madeExtras.start(message, due: due, interval: due - now))
  }

  /// Cancels a timer: its message will not be received any more.
  ///
  /// Returns false if it fired or was cancelled before. Does not suspend. Called by the body.
  @discardableResult
  public func cancel(_ timer: ActorTimer) -> Bool { core.extras?.cancel(timer.number) ?? false }

  /// Stores a message that cannot be handled yet, until ``unstash()``.
  ///
  /// - Parameters:
  ///   - message: The message.
  ///   - limit: The largest number of stashed messages. Beyond it the call throws ``MailboxStashFullError``, and the
  ///     caller keeps the message, if it is Sendable. Traps if the limit is below 1.
  ///
  /// Does not suspend. Called by the body. When the actor ends, the stashed messages go to `onUndelivered`. When a
  /// supervisor restarts the actor, the next life receives them first.
  public func stash(_ message: sending Message, limit: Int = 1_000) throws(MailboxStashFullError) {
    if limit < 1 { misuse("A stash of \(limit) messages holds none: give a limit of 1 or more.") }
    let extras = core.madeExtras
    guard extras.stashed.count < limit else { throw MailboxStashFullError(limit: limit) }
    extras.stashed.append(message)
  }

  /// Makes all stashed messages the next to be received, in the order in which they were stashed.
  ///
  /// Does not suspend. Called by the body.
  public func unstash() { core.extras?.unstash() }

  /// The number of stashed messages.
  public var stashCount: Int { core.extras?.stashed.count ?? 0 }
}

/// The error of a full stash.
public struct MailboxStashFullError: Error, CustomStringConvertible {
  /// The largest number of stashed messages.
  public var limit: Int
  /// Creates the error.
  public init(limit: Int) { self.limit = limit }
  /// A sentence that says what to do.
  public var description: String {
    "the actor has put \(limit) messages aside and may keep no more; unstash them, refuse what comes, or raise the limit"
  }
}
