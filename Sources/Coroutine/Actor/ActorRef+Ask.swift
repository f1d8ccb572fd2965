// An ask is a message that carries the means to answer it.
//
// The asker waits with a cell (OneShot.swift) and room for the answer on its stack. The Reply in the message holds an
// AskCell on the heap. The two point at each other while the ask is open:
//
//   the reply is used                                          SETTLED, and the answer is in the asker's frame
//   the last copy of it is released unused, or the actor ends  SETTLED without an answer: ActorStoppedError
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
  @usableFromInline var one: OneShot
  @usableFromInline var answer: Result<Answer, any Error>?

  @inlinable @inline(__always)
  init(_ job: JobRef) { one = OneShot(job) }
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
  /// - Throws: The error that the reply was failed with. ``ActorStoppedError`` if the reply is released unused, or the
  ///   actor ends or has ended. ``TimeoutError`` after `timeout`, which includes the wait for room in the mailbox.
  ///   ``CoroutineError/wouldDeadlock`` if an actor asks itself. ``CoroutineError/notInCoroutine`` outside a coroutine;
  ///   there, `Reply(_:)` answers a resumer.
  ///
  /// Suspends. If the coroutine is cancelled, it throws at once. An answer that comes later is dropped, and counted in
  /// ``lateAnswers``.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func ask<Answer>(
    timeout: Duration? = nil,
    _ make: (Reply<Answer>) -> sending Message
  ) throws -> sending Answer {
    // Sound because the reply was given the answer, and this is its one receiver.
    nonisolated(unsafe) let answer = try co_timeout(timeout) { try askForEver(make) }
    return answer
  }

  /// Asks as ``ask(timeout:_:)`` does, for programs that pass a function, as in `counter.ask(Command.total)`.
  ///
  /// Swift 6.3 refuses a function where one with a `sending` result is wanted, also if the result is Sendable.
  @inlinable @_disfavoredOverload @_documentation(visibility: internal)
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func ask<Answer>(
    timeout: Duration? = nil,
    _ make: (Reply<Answer>) -> Message
  ) throws -> sending Answer where Message: Sendable {
    try ask(timeout: timeout) { make($0) }
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
        if case .none = asker.pointee.answer { throw ActorStoppedError() }
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
