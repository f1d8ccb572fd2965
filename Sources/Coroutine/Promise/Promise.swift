public import Synchronization

/// A value, or the failure to get one, that is known later, to any number of coroutines, handlers and tasks.
///
/// It settles once: fulfilled, rejected, or rejected by `cancel`. Settling, attaching and cancelling may race on any threads.
/// Handlers run where `on:` says, else on the queue of the coroutine or handler that attaches them, else on a global queue: never
/// inside the attaching or the settling call, never under a lock, each once, in the order of attaching. What passes a promise by
/// without a handler, as a failure passes `then`, is passed on at once.
///
/// A promise that nobody can settle any more rejects with ``CoroutineError/abandoned``. One that is released rejected, with nobody
/// having seen the failure, is reported to ``CoroutineRuntime/onUnhandledError`` with the place where it was made, unless the
/// failure is a `CancellationError` or was ``AnyPromise/ignore()``d.
public class Promise<Success: Sendable>: AnyPromise, Awaitable, @unchecked Sendable {
  // Sound because it adds no state to AnyPromise, and links that do say why they may (Promise+Then.swift).

  /// What it is fulfilled with.
  public typealias Output = Success

  /// Creates a pending promise.
  @inlinable
  public init(file: StaticString = #fileID, line: UInt = #line) {
    super.init(Completion(for: Success.self), LaunchSite(file: file, line: line))
  }

  @inlinable
  init(launchSite: LaunchSite) { super.init(Completion(for: Success.self), launchSite) }

  @inlinable
  init(settled result: consuming Result<Success, any Error>, _ launchSite: LaunchSite) {
    super.init(Completion(for: Success.self), launchSite)
    _ = settle(result)
  }

  /// Creates a promise and runs `body` at once, on the caller, with a resumer that settles it.
  ///
  /// A throw rejects; a resumer released unused rejects with ``CoroutineError/abandoned``; a second use of it is reported and
  /// ignored. `onCancel` is called once if the promise is cancelled, and released when it settles.
  public init(
    onCancel: (@Sendable () -> Void)? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (Resumer<Success>) throws -> Void
  ) {
    super.init(Completion(for: Success.self), LaunchSite(file: file, line: line))
    self.onCancel = onCancel
    // Held until the throw has counted: released before, it would reject with `abandoned`.
    let resumer = Resumer(PromiseTarget(self))
    do {
      try body(resumer)
    } catch {
      fail(error)
    }
    withExtendedLifetime(resumer) {}
  }

  /// A fulfilled promise.
  @inlinable
  public static func value(_ value: Success) -> Promise {
    Promise(settled: .success(value), LaunchSite(file: #fileID, line: #line))
  }

  /// A rejected promise.
  public static func failure(_ error: any Error, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    Promise(settled: .failure(error), LaunchSite(file: file, line: line))
  }

  // MARK: Settling

  /// Fulfils it.
  ///
  /// False: it was settled before, or follows another, and nothing has changed. Any thread, never suspends.
  @inlinable @discardableResult
  public final func fulfill(_ value: Success) -> Bool { succeed(value, fromOutside: true) }

  /// Rejects it.
  ///
  /// False: it was settled before, or follows another, and nothing has changed. Any thread, never suspends.
  @discardableResult public final func reject(_ error: any Error) -> Bool { fail(error, fromOutside: true) }

  /// Settles it as `other` is settled, or will be.
  ///
  /// From now on nobody else settles it, except that it can be cancelled, which reaches `other` if nobody else waits for it.
  /// Does nothing if this promise is settled or follows another. Where `other` waits for this promise, directly or by any
  /// number of links and combinators, this one rejects with ``CoroutineError/cycle``. A promise that is derived from others, by
  /// a link or a combinator, settles by whichever comes first: what it was made for, or `other`. Any thread, never suspends.
  @inlinable
  public final func follow(_ other: Promise) {
    guard isFree else { return followAdditionally(other) }
    if lockIn(), !wait(for: other, Self.copier) { letGo(of: other) }
  }

  /// For a promise that waits for another already: its own node is taken.
  @usableFromInline
  final func followAdditionally(_ other: Promise) {
    guard lockIn() else { return }
    let isWaiting = waitAdditionally(for: other) { promise, other in
      _ = unsafeDowncast(promise, to: Promise.self).settle(
        other.completion.outcome(as: Success.self).unsafelyUnwrapped
      )
    }
    if !isWaiting { letGo(of: other) }
  }

  @inlinable static var copier: PromiseRunner {
    { promise, source, _ in
      guard let source else { return }
      unsafeDowncast(promise, to: Promise<Success>.self).copy(source)
    }
  }

  /// Takes over the value of a fulfilled promise.
  @inlinable @inline(__always)
  final func copy(_ source: AnyPromise) { _ = succeed(source.completion.value(as: Success.self), fromOutside: false) }

  @inlinable
  final func succeed(_ value: consuming Success, fromOutside: Bool) -> Bool {
    completion.pointee.lock.lock()
    guard completion.pointee.state.load(ordering: .relaxed) == Completion.pending, !(fromOutside && isLocked) else {
      completion.pointee.lock.unlock()
      return false
    }
    completion.store(value)
    publish(Completion.succeeded)
    return true
  }

  @inlinable @discardableResult
  final func settle(_ result: consuming Result<Success, any Error>, fromOutside: Bool = false) -> Bool {
    switch result {
    case .success(let value): succeed(value, fromOutside: fromOutside)
    case .failure(let error): fail(error, fromOutside: fromOutside)
    }
  }

  // MARK: Looking and waiting

  /// The outcome; nil while pending.
  ///
  /// Looking is not handling: a failure that is only looked at is still reported as unhandled.
  public final var result: Result<Success, any Error>? { completion.outcome(as: Success.self) }

  /// The value, for async code.
  ///
  /// Suspends the Task, never blocks a thread. Cancelling the awaiting Task throws `CancellationError` there, at once, and
  /// leaves the promise alone.
  public final var value: Success {
    get async throws {
      try await awaitSettled()
      return try completion.get(as: Success.self)
    }
  }

  /// Calls `completion` once, in the settling call, or at once if it is settled.
  ///
  /// By then all that waits for the promise, by whatever links, has been told. Callbacks are called in the order of `observe`, one
  /// after the other, outside of every lock: one that comes while another is being called waits for its turn. What one of them
  /// links or settles behaves as it does anywhere. One that settles the next promise nests that one's callbacks on the stack: to
  /// pass outcomes on, use ``follow(_:)``, which does not.
  public final func observe(_ completion: @escaping @Sendable (Result<Success, any Error>) -> Void) -> Observation {
    // Sound because a promise calls its callbacks while it is being used or, at the latest, in its deinit.
    let callback = ClosureCallback { [unowned(unsafe) self] in
      completion(self.completion.outcome(as: Success.self).unsafelyUnwrapped)
    }
    guard self.completion.add(callback) else {
      completion(self.completion.outcome(as: Success.self).unsafelyUnwrapped)
      return Observation {}
    }
    // Weak, because it may be called off at any time, and must not keep the promise from being found abandoned.
    return Observation { [weak self] in _ = self?.completion.remove(callback) }
  }

  /// Cancels the promise.
  public final func cancelAwaited() { cancel() }

  /// Suspends until the promise is settled, as co_await does.
  @inlinable
  public final func awaitValue() throws -> Success {
    // As in Job.join.
    defer { withExtendedLifetime(self) {} }
    try completion.wait(.promise)
    return try completion.get(as: Success.self)
  }
}

extension Promise: CustomStringConvertible {
  /// What it promises, and how it stands.
  public var description: String {
    switch result {
    case nil: "Promise<\(Success.self)>(pending)"
    case .success(let value)?: "Promise<\(Success.self)>(fulfilled: \(value))"
    case .failure(let error)?: "Promise<\(Success.self)>(rejected: \(error))"
    }
  }
}

/// Lets a resumer settle a promise.
final class PromiseTarget<Success: Sendable>: ResumeTarget<Success>, @unchecked Sendable {
  // Sound because `promise` is immutable and guards itself, and `wasUsed` is atomic.
  private let promise: Promise<Success>
  private let wasUsed = Atomic(false)
  init(_ promise: Promise<Success>) {
    self.promise = promise
    super.init()
  }
  override var summary: String { promise.summary }

  override func resume(_ outcome: Result<Success, any Error>) -> State {
    let isFirst = !wasUsed.exchange(true, ordering: .relaxed)
    if promise.settle(outcome, fromOutside: true) { return .pending }
    // A first use that comes too late is nobody's mistake: the promise was cancelled, or settled by another hand.
    return isFirst || promise.wasCancelled.load(ordering: .acquiring) ? .detached : .resumed
  }
}
