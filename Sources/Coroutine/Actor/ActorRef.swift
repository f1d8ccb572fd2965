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

  /// The number of messages in the mailbox at this moment, without those of waiting senders.
  ///
  /// Messages that the body has stashed, and its timers, do not count. Any thread.
  public var count: Int { core.channel.count }

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

// For programs that pass these as functions; see Channel+Transfer.swift.
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

// MARK: - Asking

// An ask is a message that carries the means to answer it.
//
// The asker waits with a cell (OneShot.swift) and room for the answer on its stack. The Reply in the message holds an
// AskCell on the heap. The two point at each other while the ask is open:
//
//   the reply is used                                          SETTLED, and the answer is in the asker's frame
//   the last copy of it is released unused                     SETTLED without an answer: ReplyDroppedError
//   the actor ends                                             SETTLED without an answer: ActorStoppedError
//   the asker is cancelled, times out, or cannot send          DETACHED; an answer after that is counted
//
// Invariants, under the actor's `asksLock`, which is the lock of the OneShot
//  1. ask.asker and the `context` of the asker's waiter are set together and cleared together (`closeAsk`), by the
//     thread that settles, or by the asker before its frame goes. So code that reaches one from the other under the
//     lock finds live memory.
//  2. The waiter is linked in `asks` while the asker waits and the ask is open, unless the ask has been delegated.
//  3. An AskCell that is answered does not close the ask in its deinit. So an answer always closes it, even if late.

/// The asker's side of an ask, in its frame.
@usableFromInline
struct Asker<Answer> {
  /// The first field, so that a pointer to it is a pointer to the whole.
  @usableFromInline var head: AskerHead
  @usableFromInline var answer: Result<Answer, any Error>?

  @inlinable @inline(__always)
  init(_ job: JobRef) { head = AskerHead(one: OneShot(job)) }
}

/// The part of an `Asker` that does not depend on the answer's type.
@usableFromInline
struct AskerHead {
  /// The first field, as above.
  @usableFromInline var one: OneShot
  /// Whether the reply was released unused, under the actor's `asksLock`.
  @usableFromInline var isDropped = false

  @inlinable @inline(__always)
  init(one: OneShot) { self.one = one }
}

/// The state that all copies of a reply share.
@usableFromInline
class AskCell: @unchecked Sendable {
  // Sound because mutable fields are under the lock of `actor`, except in the deinit, when no other thread can reach
  // them.
  /// Retained by hand, so that an answer retains nothing.
  @usableFromInline final let heldActor: Unmanaged<ActorLife>
  /// The cell of an `Asker`.
  @exclusivity(unchecked) @usableFromInline final var asker: OneShotRef?
  @exclusivity(unchecked) @usableFromInline final var isAnswered = false
  @exclusivity(unchecked) @usableFromInline final var isDelegated = false

  @inlinable
  init(_ actor: ActorLife, _ asker: OneShotRef) {
    heldActor = .passRetained(actor)
    self.asker = asker
    asker.pointee.waiter.context = Unmanaged.passUnretained(self).toOpaque()
  }

  /// Creates a cell for an asker that is not a coroutine in `ask`; it has a lock of its own.
  init() { heldActor = .passRetained(ActorLife(nil)) }

  final var actor: ActorLife { heldActor.takeUnretainedValue() }

  /// Whether an answer is still wanted; called under the lock.
  var isOpen: Bool { !isAnswered && asker != nil }

  /// A reply that is released unused fails the ask.
  deinit {
    if !isAnswered { abandon() }
    heldActor.release()
  }

  private final func abandon() {
    actor.asksLock.lock()
    guard let asker else { return actor.asksLock.unlock() }
    // The cell of an asker is that of an `Asker`, whose head it begins.
    UnsafeMutableRawPointer(asker).assumingMemoryBound(to: AskerHead.self).pointee.isDropped = true
    _ = asker.settle()
    asker.closeAsk(of: actor)
    asker.wake(leaving: actor.asksLock.known)
  }
}

extension UnsafeMutablePointer where Pointee == OneShot {
  /// The other side of the ask while it is open; used under the lock.
  @inlinable var ask: Unmanaged<AskCell>? { pointee.waiter.context.map { .fromOpaque($0) } }

  /// Whether the ask was delegated; called under the lock.
  @inlinable var isDelegated: Bool { ask?._withUnsafeGuaranteedRef { $0.isDelegated } ?? false }

  /// Closes the ask, under the lock: the actor and the AskCell do not refer to the asker any more.
  @inlinable @inline(__always)
  func closeAsk(of actor: ActorLife) {
    actor.asks.remove(waiter)
    ask?._withUnsafeGuaranteedRef { $0.asker = nil }
    pointee.waiter.context = nil
  }

  /// Closes the ask of an asker that gives up: from then on no other thread can reach its cell.
  @usableFromInline
  func withdraw(from actor: ActorLife) {
    actor.asksLock.withLock { closeAsk(of: actor) }
  }
}

extension ActorRef {
  /// Tells the actor a message that carries a ``Reply``, and waits for the answer.
  ///
  /// ```swift
  /// let total = try counter.ask(timeout: .seconds(1)) { .total($0) }
  /// ```
  ///
  /// - Returns: The answer, once the reply is used.
  /// - Throws: The error that the reply was failed with. ``ReplyDroppedError`` if the reply is released unused, as by a
  ///   handler that throws. ``ActorStoppedError`` if the actor ends or has ended. ``TimeoutError`` after
  ///   `timeout`, which includes the wait for room in the mailbox. ``CoroutineError/wouldDeadlock`` if an actor
  ///   asks itself. ``CoroutineError/notInCoroutine`` outside a coroutine; there, `Reply(_:)` answers a resumer.
  ///
  /// Suspends. If the coroutine is cancelled, it throws at once. An answer that comes later is dropped, and counted in
  /// ``lateAnswers``.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func ask<Answer>(
    timeout: Duration? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ make: (Reply<Answer>) -> sending Message
  ) throws -> sending Answer {
    // Sound because the reply was given the answer, and this is its one receiver.
    nonisolated(unsafe) let answer = try co_timeout(timeout, file: file, line: line) { try askForEver(make) }
    return answer
  }

  /// Asks as ``ask(timeout:file:line:_:)`` does, for programs that pass a function, as in `counter.ask(Command.total)`.
  ///
  /// Swift 6.3 refuses a function where one with a `sending` result is wanted, also if the result is Sendable.
  @inlinable @_disfavoredOverload @_documentation(visibility: internal)
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func ask<Answer>(
    timeout: Duration? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ make: (Reply<Answer>) -> Message
  ) throws -> sending Answer where Message: Sendable {
    try ask(timeout: timeout, file: file, line: line) { make($0) }
  }

  @inlinable
  func askForEver<Answer>(_ make: (Reply<Answer>) -> sending Message) throws -> Answer {
    let (_, job) = try Carrier.beginWaiting()
    if core.runs(in: job) { throw CoroutineError.wouldDeadlock(because: .asksItself) }
    // Temporary memory, and not a variable: the end of a variable would release the answer once more.
    return try withUnsafeTemporaryAllocation(of: Asker<Answer>.self, capacity: 1) { memory in
      let asker = memory.baseAddress.unsafelyUnwrapped
      asker.initialize(to: Asker(job))
      let one = UnsafeMutableRawPointer(asker).assumingMemoryBound(to: OneShot.self)
      do {
        try tell(make(Reply(AskCell(core, one))))
        try one.wait(.answer, core.asksLock.known, for: core.address, onCancel: {}) {
          if one.isDelegated { return true }
          if core.refusesAsks { return false }
          core.asks.append(one.waiter)
          return true
        }
        if case .none = asker.pointee.answer {
          throw asker.pointee.head.isDropped ? ReplyDroppedError() : ActorStoppedError()
        }
      } catch {
        one.withdraw(from: core)
        asker.deinitialize(count: 1)
        throw error
      }
      return try asker.move().answer.unsafelyUnwrapped.get()
    }
  }

  /// The number of answers that came after their ask had been given up.
  ///
  /// May be read on any thread.
  public var lateAnswers: Int { core.asksLock.withLock { core.lateCount } }
}

// MARK: - Replies

/// The means to answer an ask, once.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// while let command = try mailbox.receive() {
///   switch command {
///   case .add(let item, let count): counts[item, default: 0] += count
///   case .count(let item, let reply): reply(counts[item] ?? 0)
///   }
/// }
/// ```
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// let count = try stock.ask(timeout: .seconds(1)) { .count(of: "book", $0) }
/// ```
///
/// It may be kept, passed on, and used on any thread. The first use counts. A second use is reported to
/// ``CoroutineRuntime/unhandledErrorHandler`` as ``ReplyUsedTwiceError``, with the name and the launch site of the
/// actor. Using it never suspends.
///
/// The answer need not be Sendable: it is given to the asker (`sending`). If all copies are released unused, the asker
/// gets ``ReplyDroppedError``. So a handler that throws, returns early or forgets to answer does not leave the asker
/// waiting.
public struct Reply<Answer>: Sendable {
  @usableFromInline let cell: AskCell

  @inlinable init(_ cell: AskCell) { self.cell = cell }

  /// Answers the ask.
  @inlinable
  public func callAsFunction(_ answer: consuming sending Answer) { settle(.success(answer)) }

  /// Makes the ask throw `error`.
  @inlinable
  public func fail(_ error: any Error) { settle(.failure(error)) }

  /// Answers the ask with a result.
  @inlinable
  public func callAsFunction(with result: sending Result<Answer, any Error>) { settle(result) }

  /// Whether the asker still waits: false once the ask is answered, and once the asker was cancelled or has timed out.
  ///
  /// Handlers can check it to skip work that is not needed any more. May be read on any thread.
  public var isAwaited: Bool { cell.actor.asksLock.withLock { cell.isOpen } }

  /// Detaches the ask from the actor that was asked: the end of that actor does not fail the ask any more.
  ///
  /// For actors that pass asks on to others. Releasing the reply unused still fails the ask. May be called on any
  /// thread.
  public func delegate() {
    cell.actor.asksLock.lock()
    cell.isDelegated = true
    if let asker = cell.asker { cell.actor.asks.remove(asker.waiter) }
    cell.actor.asksLock.unlock()
  }

  @inlinable
  func settle(_ result: Result<Answer, any Error>) {
    let isLate = cell.heldActor._withUnsafeGuaranteedRef { actor in
      actor.asksLock.lock()
      guard !cell.isAnswered, let asker = cell.asker, asker.settle() else {
        actor.asksLock.unlock()
        return true
      }
      cell.isAnswered = true
      let frame = UnsafeMutableRawPointer(asker).assumingMemoryBound(to: Asker<Answer>.self)
      withUnsafeMutablePointer(to: &frame.pointee.answer) { $0.initialize(to: result) }
      asker.closeAsk(of: actor)
      asker.wake(leaving: actor.asksLock.known)
      return false
    }
    if isLate { settleLate(result) }
  }

  /// Handles an answer for which no coroutine waits.
  @usableFromInline @inline(never)
  func settleLate(_ result: Result<Answer, any Error>) {
    let actor = cell.actor
    actor.asksLock.lock()
    let isFirst = !cell.isAnswered
    cell.isAnswered = true
    // The asker was cancelled, and has not withdrawn yet: an answered cell does not close the ask in its deinit.
    if let asker = cell.asker { asker.closeAsk(of: actor) }
    let other = cell as? ResumerCell<Answer>
    if isFirst, other == nil { actor.lateCount += 1 }
    actor.asksLock.unlock()
    if isFirst {
      other?.resume(result)
      return
    }
    // The report names the actor, or the asker if there is no actor.
    let late = ReplyUsedTwiceError(late: "\(result)")
    if let job = actor.job {
      job.report(late)
    } else if let other {
      other.report(late)
    } else {
      UnhandledErrors.report(.init(late, in: "an actor"))
    }
  }
}

extension Reply where Answer: Sendable {
  /// Creates a reply that resumes `resumer`: a coroutine in `co_suspend`, or a promise.
  ///
  /// Plain threads and async code can wait for a promise. Several may, so the answer must be Sendable.
  ///
  /// ```swift
  /// let total = Promise<Int> { done in _ = counter.tryTell(.total(Reply(done))) }
  /// print(try await total.value)
  /// ```
  ///
  /// If it is released unused, it resumes with ``ReplyDroppedError``.
  public init(_ resumer: Resumer<Answer>) {
    cell = ResumerCell<Answer>(report: { resumer.target.report($0) }, resume: { resumer.resume(with: $0) })
  }
}

extension Reply where Answer == Void {
  /// Answers an ask that expects no value.
  @inlinable
  public func callAsFunction() { settle(.success(())) }
}

/// The cell of a reply whose asker is not a coroutine in `ask`.
///
/// Its closures hold the resumer: a reply to a question with an answer that is not Sendable has no such cell.
private final class ResumerCell<Answer>: AskCell, @unchecked Sendable {
  // Sound because the closures never change.
  let report: @Sendable (any Error) -> Void
  let resume: @Sendable (Result<Answer, any Error>) -> Void

  init(
    report: @escaping @Sendable (any Error) -> Void,
    resume: @escaping @Sendable (Result<Answer, any Error>) -> Void
  ) {
    self.report = report
    self.resume = resume
    super.init()
  }

  override var isOpen: Bool { !isAnswered }

  deinit { if !isAnswered { resume(.failure(ReplyDroppedError())) } }
}

/// The error of a question whose reply was released unused.
///
/// The actor may live on, and the next question be answered.
public struct ReplyDroppedError: Error, CustomStringConvertible {
  /// Creates the error.
  public init() {}
  /// A sentence that describes what happened.
  public var description: String {
    "the question got no answer: what handles it has thrown, returned early or forgotten the reply, or the mailbox "
      + "has dropped it"
  }
}

/// The error of a reply that was used twice, passed to ``CoroutineRuntime/unhandledErrorHandler``.
public struct ReplyUsedTwiceError: Error, CustomStringConvertible {
  /// The argument of the second use.
  public var late: any Sendable
  /// Creates the error.
  public init(late: any Sendable) { self.late = late }
  /// A sentence that describes the error.
  public var description: String {
    "a reply was used although it had been used before; the second answer, \(asLine(late)), is ignored; answer each question once"
  }
}

// MARK: - Groups

/// A group of actors that all get a message, or that get messages in rotation.
///
/// Every member gets the same message, so messages are Sendable. The group holds its members. A member leaves the group
/// when it ends. An actor can be a member only once. The members are in the order of joining.
public final class ActorGroup<Message: Sendable>: @unchecked Sendable {
  // Sound because the members are under the lock. Members that leave the list are released after the lock is left.
  private struct Member {
    let actor: ActorRef<Message>
    let watcher: ActorWatcher
  }

  private let lock = Shared<ThreadLock>()
  @exclusivity(unchecked) private var list: [Member] = []
  /// The index of the member that `next` returns.
  @exclusivity(unchecked) private var nextIndex = 0

  /// Creates an empty group.
  public init() {}

  /// Cancels the watchers: without this, an actor would keep one for every group that it has been in.
  deinit { for member in list { member.watcher.cancel() } }

  /// Adds an actor to the group.
  ///
  /// Returns false if it is a member already, or has ended. Never suspends. May be called on any thread. Linear in the
  /// number of members.
  @discardableResult
  public func join(_ actor: ActorRef<Message>) -> Bool {
    let core = actor.core
    let watcher = ActorWatcher(core, .leaves { [weak self] in self?.remove(core) })
    lock.lock()
    let isNew = !list.contains { $0.actor.core === core }
    if isNew { list.append(Member(actor: actor, watcher: watcher)) }
    lock.unlock()
    guard isNew else { return false }
    core.watch(watcher)
    return !watcher.wasCalled
  }

  /// Removes an actor from the group.
  ///
  /// Returns false if it was not a member. Never suspends. May be called on any thread. Linear in the number of
  /// members.
  @discardableResult
  public func leave(_ actor: ActorRef<Message>) -> Bool { remove(actor.core) != nil }

  /// The current members.
  public var members: [ActorRef<Message>] { lock.withLock { list.map(\.actor) } }

  /// Sends a message to every member, in the order of joining.
  ///
  /// Suspends as ``ActorRef/tell(_:)`` does, for one member after the other. It skips members that have stopped, and
  /// members whose full mailbox refuses the message. If the coroutine is cancelled, it throws, and the remaining
  /// members get no message.
  ///
  /// - Returns: The number of members that accepted the message.
  @discardableResult
  public func tell(_ message: Message) throws -> Int {
    var told = 0
    for member in members {
      do {
        try member.tell(message)
        told += 1
      } catch is ActorStoppedError {
      } catch is MailboxFullError {}
    }
    return told
  }

  /// Sends a message to every member that accepts it without a wait.
  ///
  /// Never suspends. May be called on any thread.
  ///
  /// - Returns: The number of members that accepted the message.
  @discardableResult
  public func tryTell(_ message: Message) -> Int {
    members.reduce(0) { $1.tryTell(message) == .sent ? $0 + 1 : $0 }
  }

  /// Returns the next member in rotation, in the order of joining, or nil if there is none.
  ///
  /// ```swift
  /// let answer = try workers.next()?.ask { .work(item, $0) }
  /// ```
  ///
  /// Never suspends. May be called on any thread.
  public func next() -> ActorRef<Message>? {
    lock.lock()
    defer { lock.unlock() }
    guard !list.isEmpty else { return nil }
    nextIndex = (nextIndex + 1) % list.count
    return list[(nextIndex + list.count - 1) % list.count].actor
  }

  /// Removes an actor, and returns the handle that the group held.
  private func remove(_ core: ActorCore<Message>) -> ActorRef<Message>? {
    lock.lock()
    var member: Member?
    if let index = list.firstIndex(where: { $0.actor.core === core }) {
      member = list.remove(at: index)
      if index < nextIndex { nextIndex -= 1 }
    }
    lock.unlock()
    member?.watcher.cancel()
    return member?.actor
  }
}
