import Synchronization

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
/// gets ``ActorStoppedError``. So a handler that throws, returns early or forgets to answer does not leave the asker
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
  /// If it is released unused, it resumes with ``ActorStoppedError``.
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

  deinit { if !isAnswered { resume(.failure(ActorStoppedError())) } }
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
