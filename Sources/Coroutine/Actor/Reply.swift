import Synchronization

/// The means to answer a question, once.
///
/// It may be kept, handed on, and used on any thread. The first use counts; a second one is reported to
/// ``CoroutineRuntime/onUnhandledError`` as ``AnsweredTwice``, with the name and the launch place of the actor. Using
/// it never suspends.
///
/// Released unused, all copies of it, the asker gets ``ActorStopped``: a handler that throws, returns early or forgets to answer
/// leaves nobody waiting.
public struct Reply<Answer: Sendable>: Sendable {
  @usableFromInline let cell: AskCell

  @inlinable init(_ cell: AskCell) { self.cell = cell }

  /// A reply that resumes whatever `resumer` does: a coroutine in `co_suspend`, or a promise, which plain threads and async code
  /// can wait for.
  ///
  /// ```swift
  /// let total = Promise<Int> { done in _ = counter.tryTell(.total(Reply(done))) }
  /// print(try await total.value)
  /// ```
  ///
  /// Released unused, it resumes with ``ActorStopped``.
  public init(_ resumer: Resumer<Answer>) { cell = ResumerCell(resumer) }

  /// Answers.
  @inlinable
  public func callAsFunction(_ answer: consuming Answer) { settle(.success(answer)) }

  /// Lets the ask throw `error`.
  @inlinable
  public func fail(_ error: any Error) { settle(.failure(error)) }

  /// Answers with a result.
  @inlinable
  public func callAsFunction(with result: Result<Answer, any Error>) { settle(result) }

  /// Whether anybody still waits for the answer: false once it has been given, and once the asker has been cancelled or has timed
  /// out.
  ///
  /// For handlers that can spare themselves the work. Any thread.
  public var isAwaited: Bool { cell.actor.asksLock.withLock { cell.isOpen } }

  /// From here on the answer is somebody else's affair: the end of the actor that was asked no longer fails the question.
  ///
  /// For actors that hand questions on to others. Releasing the reply unused fails the question as ever. Any thread.
  public func delegate() {
    cell.actor.asksLock.lock()
    cell.isDelegated = true
    if let asker = cell.asker { cell.actor.asks.remove(asker.waitNode) }
    cell.actor.asksLock.unlock()
  }

  @inlinable
  func settle(_ result: Result<Answer, any Error>) {
    let isLate = cell.heldActor._withUnsafeGuaranteedRef { actor in
      actor.asksLock.lock()
      guard !cell.isAnswered, let asker = cell.asker, asker.claim(actor) else {
        actor.asksLock.unlock()
        return true
      }
      cell.isAnswered = true
      asker.pointee.slot.assumingMemoryBound(to: Result<Answer, any Error>?.self).initialize(to: result)
      let woken = asker.pointee.isWaiting ? asker.waitNode : nil
      asker.detach(.answered)
      actor.asksLock.unlock()
      if let woken { woken.wake() }
      return false
    }
    if isLate { settleLate(result) }
  }

  /// An answer for which no coroutine waits.
  @usableFromInline @inline(never)
  func settleLate(_ result: Result<Answer, any Error>) {
    let actor = cell.actor
    actor.asksLock.lock()
    let isFirst = !cell.isAnswered
    cell.isAnswered = true
    // An asker that has been cancelled and has not come to withdraw yet: answered, the cell will not detach in its deinit.
    if let asker = cell.asker { asker.detach(asker.pointee.state) }
    let other = cell as? ResumerCell<Answer>
    if isFirst, other == nil { actor.lateCount += 1 }
    actor.asksLock.unlock()
    if isFirst {
      other?.resumer.resume(with: result)
      return
    }
    // The failure names the actor; where there is none, the asker.
    let origin = actor.job?.summary ?? other?.resumer.target.summary ?? "an actor"
    UnhandledErrors.report(AnsweredTwice(late: "\(result)"), in: origin)
  }
}

extension Reply where Answer == Void {
  /// Answers that it is done.
  @inlinable
  public func callAsFunction() { settle(.success(())) }
}

/// What the copies of a reply share whose asker is no coroutine in `ask`.
private final class ResumerCell<Answer: Sendable>: AskCell, @unchecked Sendable {
  // Sound because `resumer` never changes.
  let resumer: Resumer<Answer>

  init(_ resumer: Resumer<Answer>) {
    self.resumer = resumer
    super.init()
  }

  override var isOpen: Bool { !isAnswered }

  deinit { if !isAnswered { resumer.fail(ActorStopped()) } }
}

/// A reply was used although it had been used before; goes to ``CoroutineRuntime/onUnhandledError``.
public struct AnsweredTwice: Error, CustomStringConvertible {
  /// What the second use carried.
  public var late: any Sendable
  /// Creates the error.
  public init(late: any Sendable) { self.late = late }
  /// What is wrong.
  public var description: String {
    "a reply was used although it had been used before; the second answer, \(late), is ignored; answer each question once"
  }
}
