public import Synchronization

// A question: a message that carries the means to answer it.
//
// The asker waits with a node on its stack. The Reply in the message holds a cell on the heap. The two point at each other while
// the question is open:
//
//   OPEN --- the reply is used: the answer is moved to the asker's stack ---> ANSWERED
//     |  --- the last copy of the reply is released, or the actor ends ---> STOPPED
//     |  --- the asker gives up: cancelled, timed out, not let in ---> WITHDRAWN; an answer that comes then is counted
//
// Invariants, under the actor's `asksLock`
//  1. node.cell and cell.asker are set together and cleared together (`detach`), so whoever reaches one from the other
//     under the lock finds live memory: a cell's deinit and an asker's leaving both take the lock to detach first.
//  2. The node is linked in `asks` while the asker waits and the question is OPEN, unless it has been delegated.
//     A cell that is answered does not detach in its deinit, so an answer detaches in any case, also where it comes too late.
//  3. Who leaves OPEN while the asker waits has claimed its wait. A claim that fails has lost against the asker's cancellation,
//     which will withdraw.
//
// An answer may come before the asker waits, even before the message is told: then the asker finds the state changed, under the lock,
// and does not wait.

/// An asker's place, on its stack.
@usableFromInline
struct AskWaiter {
  @usableFromInline enum State: UInt8 { case open, answered, stopped }

  /// First, so that a pointer to it is a pointer to the whole.
  @usableFromInline var waiter: Waiter
  @usableFromInline var cell: Unmanaged<AskCell>?
  /// Where the answer goes: a `Result<Answer, any Error>?`.
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
  /// The whole of a node that is queued in an actor's `asks`.
  @inlinable var askNode: AskRef { UnsafeMutableRawPointer(self).assumingMemoryBound(to: AskWaiter.self) }
}

extension UnsafeMutablePointer where Pointee == AskWaiter {
  @inlinable var waitNode: UnsafeMutablePointer<Waiter> {
    UnsafeMutableRawPointer(self).assumingMemoryBound(to: Waiter.self)
  }

  /// Under the lock: the question is no longer open, and the two forget each other.
  @inlinable
  func detach(_ state: AskWaiter.State) {
    pointee.state = state
    guard let cell = pointee.cell else { return }
    cell._withUnsafeGuaranteedRef { $0.asker = nil }
    pointee.cell = nil
  }

  /// Under the lock: whether the asker's wait, where it waits, could be ended for it.
  @inlinable
  func claim(_ actor: ActorLife) -> Bool {
    guard pointee.isWaiting else { return true }
    guard pointee.waiter.job.unsafelyUnwrapped.claim(pointee.waiter.epoch, WakeReason.delivered) else { return false }
    actor.asks.remove(waitNode)
    return true
  }

  /// The asker gives up, or has been failed: nobody else knows the node any more.
  @usableFromInline
  func withdraw(from actor: ActorLife) {
    actor.asksLock.lock()
    actor.asks.remove(waitNode)
    detach(pointee.state)
    actor.asksLock.unlock()
  }

  /// Suspends the asker until the question is no longer open.
  ///
  /// Throws what cancellation throws. Inlined down to the switch: each frame in between costs a mispredicted return.
  @inlinable @inline(__always)
  func wait(_ actor: ActorLife) throws {
    let (carrier, job) = try Carrier.requireJob()
    // A tell that had to wait may have been woken just before a cancellation that looked at it in between.
    if job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0, let error = job.cancellation() {
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

  /// Under the lock.
  @inlinable var isDelegated: Bool { pointee.cell?._withUnsafeGuaranteedRef { $0.isDelegated } ?? false }
}

/// What the copies of a reply share.
@usableFromInline
class AskCell: @unchecked Sendable {
  // Sound because what changes is under the lock of `actor`, except in deinit, when nobody else can reach it from here.
  /// Held by hand, so that an answer retains nothing.
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

  /// For an asker that is no coroutine; it has a lock of its own.
  init() { heldActor = .passRetained(ActorLife(nil)) }

  final var actor: ActorLife { heldActor.takeUnretainedValue() }

  /// Under the lock.
  var isOpen: Bool { !isAnswered && asker != nil }

  /// Released unanswered, the asker is told so.
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
  /// Suspends until the reply is used: returns what it was called with, throws what it was failed with. If the reply is released
  /// without having been used, or the actor ends, or has ended, it throws ``ActorStopped``. After `timeout`, which counts from
  /// here and includes waiting for room in the mailbox, it throws ``TimeoutError``; cancelled, it throws what cancellation throws.
  /// An answer that comes after that is dropped and counted in ``lateAnswers``. An actor that asks itself would wait for ever and
  /// gets ``CoroutineError/wouldDeadlock``. Off a coroutine ``CoroutineError/notInCoroutine``; `Reply(_:)` answers a resumer.
  @inlinable
  public func ask<Answer: Sendable>(
    timeout: Duration? = nil,
    _ make: (Reply<Answer>) -> Message
  ) throws -> Answer {
    if let timeout { return try co_timeout(timeout) { try askForEver(make) } }
    return try askForEver(make)
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

  /// How many answers came when nobody waited for them any more.
  ///
  /// Any thread.
  public var lateAnswers: Int { core.asksLock.withLock { core.lateCount } }
}
