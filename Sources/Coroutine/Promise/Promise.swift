import Synchronization

/// A value, or the failure to get one, that is known later, to any number of coroutines, handlers and tasks.
///
/// It settles once: fulfilled, rejected, or rejected by `cancel`. Settling and attaching may race on any threads. Handlers
/// run where `on:` says, else on the queue of the coroutine that attaches them, else on a global queue: never inside the
/// attaching or the settling call, never under a lock, each once, in the order of attaching.
public class Promise<Success: Sendable>: Awaitable, @unchecked Sendable {
  // Sound because the completion has its own lock, under which `onCancel` is taken too.
  /// What it is fulfilled with.
  public typealias Output = Success

  // It points to the property below, as in AnyJob.
  @exclusivity(unchecked) @usableFromInline final var completion = CompletionRef(bitPattern: 16).unsafelyUnwrapped
  @exclusivity(unchecked) private final var completionStorage = Completion(for: Success.self)
  /// Settled by `cancel`: a late resumer is then nobody's mistake.
  fileprivate final let wasCancelled = Atomic<Bool>(false)
  @exclusivity(unchecked) private final var onCancel: (@Sendable () -> Void)?

  /// Creates a pending promise.
  public init() { completion = locateCompletion() }

  @usableFromInline
  init(settled result: Result<Success, any Error>) {
    completion = locateCompletion()
    _ = completion.settle(result)
  }

  /// Creates a promise and runs `body` at once, on the caller, with a resumer that settles it.
  ///
  /// A throw rejects; a resumer released unused rejects with ``CoroutineError/abandoned``. `onCancel` is called once if
  /// `cancel` settles it.
  public init(onCancel: (@Sendable () -> Void)? = nil, _ body: (Resumer<Success>) throws -> Void) {
    completion = locateCompletion()
    self.onCancel = onCancel
    // Held until the throw has counted: released before, it would reject with `abandoned`.
    let resumer = Resumer(PromiseTarget(self))
    do {
      try body(resumer)
    } catch {
      settle(.failure(error))
    }
    withExtendedLifetime(resumer) {}
  }

  private final func locateCompletion() -> CompletionRef { withUnsafeMutablePointer(to: &completionStorage) { $0 } }

  /// Whoever still waits when the last one who could settle it is gone is told so.
  deinit { abandon() }

  /// A fulfilled promise.
  public static func value(_ value: Success) -> Promise { Promise(settled: .success(value)) }

  /// A rejected promise.
  public static func failure(_ error: any Error) -> Promise { Promise(settled: .failure(error)) }

  // MARK: Settling

  /// Fulfils it.
  ///
  /// False: it was settled before, and nothing has changed. Any thread, never suspends.
  @discardableResult public final func fulfill(_ value: Success) -> Bool { settle(.success(value)) }

  /// Rejects it.
  ///
  /// False: it was settled before, and nothing has changed. Any thread, never suspends.
  @discardableResult public final func reject(_ error: any Error) -> Bool { settle(.failure(error)) }

  /// Rejects it with `CancellationError` and calls `onCancel`, unless it is settled.
  public final func cancel() {
    let onCancel = completion.pointee.lock.withLock { self.onCancel.take() }
    guard completion.fail(CancellationError()) else { return }
    wasCancelled.store(true, ordering: .releasing)
    onCancel?()
  }

  @discardableResult
  final func settle(_ result: Result<Success, any Error>) -> Bool {
    let isFirst = completion.settle(result)
    // What the canceller would have needed is released at the end, outside of the lock.
    if isFirst { _ = completion.pointee.lock.withLock { onCancel.take() } }
    return isFirst
  }

  private final func abandon() {
    if !completion.isSettled, completion.pointee.waiters.first != nil {
      _ = completion.fail(CoroutineError.abandoned)
    }
  }

  // MARK: Looking and waiting

  /// The outcome; nil while pending.
  public final var result: Result<Success, any Error>? { completion.outcome(as: Success.self) }

  /// The value, for async code.
  ///
  /// Cancelling the awaiting Task leaves the promise alone.
  public final var value: Success {
    get async throws {
      await AsyncWait.untilCalled { completion.add($0) }
      return try completion.get(as: Success.self)
    }
  }

  /// Tells of the end.
  public final func observe(_ completion: @escaping @Sendable (Result<Success, any Error>) -> Void) -> Observation {
    // Sound because a promise calls its callbacks while it is being used or, at the latest, in its deinit.
    let callback = ClosureCallback { [unowned(unsafe) self] in
      completion(self.completion.outcome(as: Success.self).unsafelyUnwrapped)
    }
    guard self.completion.add(callback) else {
      completion(self.completion.outcome(as: Success.self).unsafelyUnwrapped)
      return Observation {}
    }
    return Observation { _ = self.completion.remove(callback) }
  }

  /// Cancels the promise.
  public final func cancelAwaited() { cancel() }

  /// Suspends until the promise is settled, as co_await does.
  @inlinable
  public final func awaitValue() throws -> Success {
    try completion.wait(.promise)
    return try completion.get(as: Success.self)
  }
}

/// Lets a resumer settle a promise.
private final class PromiseTarget<Success: Sendable>: ResumeTarget<Success>, @unchecked Sendable {
  // Sound because `promise` is immutable and guards itself.
  private let promise: Promise<Success>
  init(_ promise: Promise<Success>) {
    self.promise = promise
    super.init()
  }
  override func resume(_ outcome: Result<Success, any Error>) -> State {
    if promise.settle(outcome) { return .pending }
    return promise.wasCancelled.load(ordering: .acquiring) ? .detached : .resumed
  }
}
