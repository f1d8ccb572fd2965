import Synchronization

/// The means to answer an ask, once.
///
/// It may be kept, passed on, and used on any thread. The first use counts. A second use is reported to
/// ``CoroutineRuntime/onUnhandledError`` as ``AnsweredTwice``, with the name and the launch site of the actor. Using it
/// never suspends.
///
/// If all copies are released unused, the asker gets ``ActorStopped``. So a handler that throws, returns early or
/// forgets to answer does not leave the asker waiting.
public struct Reply<Answer: Sendable>: Sendable {
  @usableFromInline let cell: AskCell

  @inlinable init(_ cell: AskCell) { self.cell = cell }

  /// Creates a reply that resumes `resumer`: a coroutine in `co_suspend`, or a promise.
  ///
  /// Plain threads and async code can wait for a promise.
  ///
  /// ```swift
  /// let total = Promise<Int> { done in _ = counter.tryTell(.total(Reply(done))) }
  /// print(try await total.value)
  /// ```
  ///
  /// If it is released unused, it resumes with ``ActorStopped``.
  public init(_ resumer: Resumer<Answer>) { cell = ResumerCell(resumer) }

  /// Answers the ask.
  @inlinable
  public func callAsFunction(_ answer: consuming Answer) { settle(.success(answer)) }

  /// Makes the ask throw `error`.
  @inlinable
  public func fail(_ error: any Error) { settle(.failure(error)) }

  /// Answers the ask with a result.
  @inlinable
  public func callAsFunction(with result: Result<Answer, any Error>) { settle(result) }

  /// Whether the asker still waits: false once the ask is answered, and once the asker was cancelled or has timed out.
  ///
  /// Handlers can check it to skip work that is not needed any more. May be read on any thread.
  public var isAwaited: Bool {
    Host.touches(cell.actor)
    return cell.actor.asksLock.withLock { cell.isOpen }
  }

  /// Detaches the ask from the actor that was asked: the end of that actor does not fail the ask any more.
  ///
  /// For actors that pass asks on to others. Releasing the reply unused still fails the ask. May be called on any
  /// thread.
  public func delegate() {
    Host.touches(cell.actor)
    cell.actor.asksLock.lock()
    cell.isDelegated = true
    if let asker = cell.asker { cell.actor.asks.remove(asker.waiter) }
    cell.actor.asksLock.unlock()
  }

  @inlinable
  func settle(_ result: Result<Answer, any Error>) {
    let isLate = cell.heldActor._withUnsafeGuaranteedRef { actor in
      Host.touches(actor)
      actor.asksLock.lock()
      guard !cell.isAnswered, let asker = cell.asker, asker.settle() else {
        actor.asksLock.unlock()
        return true
      }
      cell.isAnswered = true
      let frame = UnsafeMutableRawPointer(asker).assumingMemoryBound(to: Asker<Answer>.self)
      withUnsafeMutablePointer(to: &frame.pointee.answer) { $0.initialize(to: result) }
      asker.closeAsk(of: actor)
      asker.wake(leaving: actor.asksLock)
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
      other?.resumer.resume(with: result)
      return
    }
    // The report names the actor, or the asker if there is no actor.
    let origin = actor.job?.summary ?? other?.resumer.target.summary ?? "an actor"
    UnhandledErrors.report(AnsweredTwice(late: "\(result)"), in: origin)
  }
}

extension Reply where Answer == Void {
  /// Answers an ask that expects no value.
  @inlinable
  public func callAsFunction() { settle(.success(())) }
}

/// The cell of a reply whose asker is not a coroutine in `ask`.
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

/// The error of a reply that was used twice, passed to ``CoroutineRuntime/onUnhandledError``.
public struct AnsweredTwice: Error, CustomStringConvertible {
  /// The argument of the second use.
  public var late: any Sendable
  /// Creates the error.
  public init(late: any Sendable) { self.late = late }
  /// A sentence that describes the error.
  public var description: String {
    "a reply was used although it had been used before; the second answer, \(asLine(late)), is ignored; answer each question once"
  }
}
