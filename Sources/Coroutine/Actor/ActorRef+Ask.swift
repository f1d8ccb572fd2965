public import Synchronization

// An ask is a message that carries the means to answer it.
//
// The asker waits with an AskWaiter on its stack. The Reply in the message holds an AskCell on the heap. The two point
// at each other while the ask is open:
//
//   OPEN --- the reply is used: the answer is moved to the asker's stack ---> ANSWERED
//     |  --- the last copy of the reply is released, or the actor ends ---> STOPPED
//     |  --- the asker is cancelled, times out, or cannot send ---> WITHDRAWN; an answer after that is counted
//
// Invariants, under the actor's `asksLock`
//  1. asker.cell and cell.asker are set together and cleared together (`detach`). So code that reaches one from the
//     other under the lock finds live memory: a cell's deinit and an asker that leaves both take the lock first, to
//     detach.
//  2. The waiter is linked in `asks` while the asker waits and the ask is OPEN, unless the ask has been delegated. A
//     cell that is answered does not detach in its deinit. So an answer always detaches, even if it comes too late.
//  3. Every step out of OPEN while the asker waits claims the asker's wait first. A claim fails if the asker was
//     cancelled before; the asker then withdraws.
//
// An answer may come before the asker waits, even before the tell returns. The asker then finds the changed state,
// under the lock, and does not wait.

/// The state of an ask, on the asker's stack.
@usableFromInline
struct AskWaiter {
  @usableFromInline enum State: UInt8 { case open, answered, stopped }

  /// The first field, so that a pointer to it is a pointer to the whole.
  @usableFromInline var waiter: Waiter
  @usableFromInline var cell: Unmanaged<AskCell>?
  /// The address of the answer: a `Result<Answer, any Error>?`.
  @usableFromInline let slot: UnsafeMutableRawPointer
  @usableFromInline var state = State.open
  @usableFromInline var isWaiting = false

  @inlinable
  init(_ job: JobRef, slot: UnsafeMutableRawPointer) {
    waiter = Waiter(job: job)
    self.slot = slot
  }
}

@usableFromInline typealias AskRef = UnsafeMutablePointer<AskWaiter>

extension UnsafeMutablePointer<Waiter> {
  /// The AskWaiter that contains a waiter of an actor's `asks`.
  @inlinable var askNode: AskRef { UnsafeMutableRawPointer(self).assumingMemoryBound(to: AskWaiter.self) }
}

extension UnsafeMutablePointer where Pointee == AskWaiter {
  @inlinable var waitNode: UnsafeMutablePointer<Waiter> {
    UnsafeMutableRawPointer(self).assumingMemoryBound(to: Waiter.self)
  }

  /// Closes the ask, under the lock: the asker and the cell do not refer to each other any more.
  @inlinable
  func detach(_ state: AskWaiter.State) {
    pointee.state = state
    guard let cell = pointee.cell else { return }
    cell._withUnsafeGuaranteedRef { $0.asker = nil }
    pointee.cell = nil
  }

  /// Claims the asker's wait, under the lock; returns true if it was claimed, or the asker does not wait yet.
  @inlinable
  func claim(_ actor: ActorLife) -> Bool {
    guard pointee.isWaiting else { return true }
    guard pointee.waiter.job.unsafelyUnwrapped.claim(pointee.waiter.epoch, WakeReason.delivered) else { return false }
    actor.asks.remove(waitNode)
    return true
  }

  /// Unlinks and detaches an asker that gives up or was failed: from then on no other thread knows the waiter.
  @usableFromInline
  func withdraw(from actor: ActorLife) {
    Host.touches(actor)
    actor.asksLock.lock()
    actor.asks.remove(waitNode)
    detach(pointee.state)
    actor.asksLock.unlock()
  }

  /// Suspends the asker until the ask is no longer open.
  ///
  /// Throws if the coroutine is cancelled. Inlined down to the switch: each frame in between costs a mispredicted
  /// return.
  @inlinable @inline(__always)
  func wait(_ actor: ActorLife) throws {
    let (carrier, job) = try Carrier.requireJob()
    // The tell may have waited, and been woken just before a cancellation, which then had no wait to end.
    if job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0, let error = job.cancellation()
    {
      withdraw(from: actor)
      throw error
    }
    actor.asksLock.lock()
    guard pointee.state == .open else { return actor.asksLock.unlock() }
    if actor.refusesAsks, !isDelegated {
      detach(.stopped)
      return actor.asksLock.unlock()
    }
    try WaitQueue.park(carrier, job, .answer) { epoch in
      pointee.waiter.epoch = epoch
      pointee.isWaiting = true
      if !isDelegated { actor.asks.append(waitNode) }
      actor.asksLock.unlock()
    } withdraw: {
      withdraw(from: actor)
    }
  }

  /// Whether the ask was delegated; called under the lock.
  @inlinable var isDelegated: Bool { pointee.cell?._withUnsafeGuaranteedRef { $0.isDelegated } ?? false }
}

/// The state that all copies of a reply share.
@usableFromInline
class AskCell: @unchecked Sendable {
  // Sound because mutable fields are under the lock of `actor`, except in the deinit, when no other thread can reach
  // them.
  /// Retained by hand, so that an answer retains nothing.
  @usableFromInline final let heldActor: Unmanaged<ActorLife>
  @exclusivity(unchecked) @usableFromInline final var asker: AskRef?
  @exclusivity(unchecked) @usableFromInline final var isAnswered = false
  @exclusivity(unchecked) @usableFromInline final var isDelegated = false

  @usableFromInline
  init(_ actor: ActorLife, _ asker: AskRef) {
    heldActor = .passRetained(actor)
    self.asker = asker
    asker.pointee.cell = Unmanaged.passUnretained(self)
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
    var woken: UnsafeMutablePointer<Waiter>?
    if let asker {
      if asker.claim(actor) {
        if asker.pointee.isWaiting { woken = asker.waitNode }
        asker.detach(.stopped)
      } else {
        asker.detach(.open)
      }
    }
    actor.asksLock.unlock()
    woken?.wake()
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
  /// - Throws: The error that the reply was failed with. ``ActorStopped`` if the reply is released unused, or the actor
  ///   ends or has ended. ``TimeoutError`` after `timeout`, which includes the wait for room in the mailbox.
  ///   ``CoroutineError/wouldDeadlock`` if an actor asks itself. ``CoroutineError/notInCoroutine`` outside a coroutine;
  ///   there, `Reply(_:)` answers a resumer.
  ///
  /// Suspends. If the coroutine is cancelled, it throws at once. An answer that comes later is dropped, and counted in
  /// ``lateAnswers``.
  @inlinable
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func ask<Answer: Sendable>(
    timeout: Duration? = nil,
    _ make: (Reply<Answer>) -> Message
  ) throws -> Answer {
    try co_timeout(timeout) { try askForEver(make) }
  }

  @inlinable
  func askForEver<Answer: Sendable>(_ make: (Reply<Answer>) -> Message) throws -> Answer {
    let (_, job) = try Carrier.beginWaiting()
    if job == core.record { throw CoroutineError.wouldDeadlock(because: .asksItself) }
    var slot: Result<Answer, any Error>?
    return try withUnsafeMutablePointer(to: &slot) { slot in
      var asker = AskWaiter(job, slot: UnsafeMutableRawPointer(slot))
      return try withUnsafeMutablePointer(to: &asker) { asker in
        do {
          try tell(make(Reply(AskCell(core, asker))))
        } catch {
          asker.withdraw(from: core)
          throw error
        }
        try asker.wait(core)
        guard let result = slot.take() else { throw ActorStopped() }
        return try result.get()
      }
    }
  }

  /// The number of answers that came after their ask had been given up.
  ///
  /// May be read on any thread.
  public var lateAnswers: Int {
    Host.touches(core)
    return core.asksLock.withLock { core.lateCount }
  }
}
