import Synchronization

/// What an actor may receive besides what others have told it: messages put back, and those of its own timers.
///
/// On the actor's own turn only, so nothing of it is locked, no message is in two places, and a timer that was called off is
/// heard no more.
///
///   told --- receive ---> handled
///              |   \--- stash ---> STASHED --- unstash, or the next life ---> FRONT --- receive ---> handled
///   TIMER --- due, receive ---> handled
@usableFromInline
final class MailboxExtras<Message: Sendable> {
  struct Timer {
    let number: Int
    var due: UInt64
    /// Nil: goes off once.
    let interval: UInt64?
    let message: Message
  }

  /// What goes before all that is in the channel, in order.
  var front = Ring<Message>(capacity: 0)
  var stashed: [Message] = []
  /// In the order in which they go off; those for the same time in the order of starting.
  private var timers: [Timer] = []
  private var lastNumber = 0

  var isEmpty: Bool { front.count == 0 && stashed.isEmpty }

  func takeAll() -> [Message] {
    unstash()
    var messages: [Message] = []
    front.removeAll(into: &messages)
    return messages
  }

  /// What was stashed goes first, in order.
  func unstash() {
    for message in stashed.reversed() { front.prepend(message) }
    stashed = []
  }

  func prepareNextLife() {
    unstash()
    timers = []
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

  /// The message of a timer that is due.
  ///
  /// One that repeats is next due at the first multiple of its interval that is still to come: an actor that was busy for long is
  /// not told the same thing many times.
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
  /// On the actor's own turn.
  var madeExtras: MailboxExtras<Message> {
    if let extras { return extras }
    let made = MailboxExtras<Message>()
    extras = made
    return made
  }
}

extension Mailbox {
  /// As `receive`: timers that are due first, then what was put back, then what was told.
  @usableFromInline
  func receiveAmongExtras() throws -> Message? {
    let extras = core.madeExtras
    while true {
      guard let due = extras.nextDue else {
        if extras.front.count > 0 { return extras.front.removeFirst() }
        let (carrier, job) = try Carrier.requireJob()
        return try core.channel.next(carrier, job)?.message
      }
      let now = clock
      if let message = extras.takeDue(now) { return message }
      if extras.front.count > 0 { return extras.front.removeFirst() }
      do {
        return try co_timeout(.nanoseconds(Int64(clamping: due - now))) {
          let (carrier, job) = try Carrier.requireJob()
          return try core.channel.next(carrier, job)?.message
        }
      } catch is TimeoutError {
        // This deadline, unless it is the reason with which the actor was cancelled: then each turn of the loop would get it
        // again, at once.
        let (_, job) = try Carrier.requireJob()
        try job.checkCancelled()
      }
    }
  }

  var clock: UInt64 {
    core.record.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.clock }
  }
}

/// A timer of an actor; see ``Mailbox/schedule(after:_:)``.
public struct ActorTimer: Sendable, Hashable {
  let number: Int
}

extension Mailbox {
  /// Lets the actor receive `message` when `delay` has passed, never early, before what others have told it.
  ///
  /// ```swift
  /// let deadline = mailbox.schedule(after: .seconds(30), .giveUp)
  /// ```
  ///
  /// Nothing is sent: `receive` looks at the clock, so a timer wakes an actor that waits for a message, and one that is busy hears
  /// of it when it next receives. A stopped actor hears of no timer after its last message; what a life has scheduled is
  /// forgotten when a supervisor restarts it. Does not suspend; to be called by the body. Linear in the number of timers.
  @discardableResult
  public func schedule(after delay: Duration, _ message: Message) -> ActorTimer {
    let due = delay > .zero ? delay.deadline(after: clock) : clock
    return ActorTimer(number: core.madeExtras.start(message, due: due, interval: nil))
  }

  /// As ``schedule(after:_:)``, again and again: at the multiples of `interval` from now.
  ///
  /// Multiples that have passed while the actor was busy count once. Traps where the interval is not longer than nothing.
  @discardableResult
  public func schedule(every interval: Duration, _ message: Message) -> ActorTimer {
    if interval <= .zero { misuse("A timer cannot go off every \(interval): give an interval longer than nothing.") }
    let now = clock
    let due = interval.deadline(after: now)
    return ActorTimer(number: core.madeExtras.start(message, due: due, interval: due - now))
  }

  /// Calls a timer off: its message will not be received any more.
  ///
  /// False: it went off before, or was called off. Does not suspend; to be called by the body.
  @discardableResult
  public func cancel(_ timer: ActorTimer) -> Bool { core.extras?.cancel(timer.number) ?? false }

  /// Puts a message aside that cannot be handled yet, until ``unstash()``.
  ///
  /// - Parameters:
  ///   - message: What is put aside.
  ///   - limit: How many may be put aside. Beyond it this throws ``StashFull``, and the message stays the caller's. Traps where
  ///     it is below 1.
  ///
  /// Does not suspend; to be called by the body. What is left when the actor ends goes to `onUndelivered`; when a supervisor
  /// restarts the actor, the next life receives it first.
  public func stash(_ message: Message, limit: Int = 1_000) throws {
    if limit < 1 { misuse("A stash of \(limit) messages holds none: give a limit of 1 or more.") }
    let extras = core.madeExtras
    guard extras.stashed.count < limit else { throw StashFull(limit: limit) }
    extras.stashed.append(message)
  }

  /// Lets all that was put aside be received next, in the order in which it was put aside.
  ///
  /// Does not suspend; to be called by the body.
  public func unstash() { core.extras?.unstash() }

  /// How many messages are put aside.
  public var stashCount: Int { core.extras?.stashed.count ?? 0 }
}

/// No more messages can be put aside.
public struct StashFull: Error, CustomStringConvertible {
  /// How many there may be.
  public var limit: Int
  /// Creates the error.
  public init(limit: Int) { self.limit = limit }
  /// What to do about it.
  public var description: String {
    "the actor has put \(limit) messages aside and may keep no more; unstash them, refuse what comes, or raise the limit"
  }
}
