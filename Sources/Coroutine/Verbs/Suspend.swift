import Synchronization

// A coroutine waits for a callback.
//
// The coroutine and its resumer share a cell. Its state, under its lock:
//
//   PENDING --- resumed: the value is stored, the wait claimed ---> RESUMED      (first use, once)
//   PENDING --- the last reference to the resumer is released unused ---> RESUMED with `abandoned`
//   PENDING --- cancelled: a resumer's claim fails, or the coroutine has returned ---> DETACHED
//
// Of delivery and cancellation exactly one wins: the claim of the wait decides, and the claim and the state change are
// one critical section. A resumer that is used while `start` still runs needs no claim: the coroutine finds RESUMED and
// does not wait.

/// The target of a resumer: a waiting coroutine or a promise.
@usableFromInline
class ResumeTarget<Output: Sendable>: @unchecked Sendable {
  // Sound because it has no state of its own.
  @usableFromInline enum State: UInt8 { case pending, resumed, detached }
  init() {}

  /// Resumes, and returns the state before: `pending` for the one use that counts.
  @usableFromInline func resume(_ outcome: Result<Output, any Error>) -> State { .detached }

  /// A description of the target, for the report of a second use, which may come after the target's end.
  var summary: String { "a coroutine" }
}

@usableFromInline
final class SuspendCell<Output: Sendable>: ResumeTarget<Output>, @unchecked Sendable {
  // Sound because everything mutable is accessed under `lock`.
  @usableFromInline let lock = SpinLock()
  @exclusivity(unchecked) @usableFromInline var state = State.pending
  @exclusivity(unchecked) @usableFromInline var result: Result<Output, any Error>?
  /// The waiting coroutine, set immediately before it parks.
  @exclusivity(unchecked) @usableFromInline var waiter: (job: JobRef, epoch: WaitEpoch)?
  /// The coroutine, for reports; its name is retained, because the coroutine may have ended by then.
  private let origin: JobOrigin

  init(_ job: JobRef) { origin = job.handle._withUnsafeGuaranteedRef { $0.origin } }

  override var summary: String { origin.summary }

  @usableFromInline
  override func resume(_ outcome: Result<Output, any Error>) -> State {
    lock.lock()
    guard state == .pending else {
      defer { lock.unlock() }
      return state
    }
    // A failed claim has lost against a cancellation.
    let woken = waiter.flatMap { $0.job.claim($0.epoch, WakeReason.delivered) ? $0.job : nil }
    if waiter != nil, woken == nil {
      state = .detached
      lock.unlock()
      return .detached
    }
    state = .resumed
    result = outcome
    lock.unlock()
    if let woken { Carrier.makeReady(woken) }
    return .pending
  }

  /// Suspends until resumed; returns nil if cancelled before.
  @usableFromInline
  func wait(_ kind: WaitKind) throws -> Result<Output, any Error>? {
    let (carrier, job) = try Carrier.requireJob()
    // `start` was foreign code: it may have cancelled its own coroutine, and that interrupt has been consumed.
    let isCancelled =
      job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0 && job.cancellation() != nil
    lock.lock()
    if state == .pending, !isCancelled {
      // A cancellation is not thrown here: the caller finds no result.
      _ = try? WaitQueue.park(carrier, job, kind) { epoch in
        waiter = (job, epoch)
        lock.unlock()
      } withdraw: {
      }
      lock.lock()
    }
    waiter = nil
    if state == .pending { state = .detached }
    let delivered = result.take()
    lock.unlock()
    return delivered
  }
}

/// Resumes a coroutine that waits in ``co_suspend(onCancel:_:)``.
///
/// The first use wins. Later uses are ignored, and reported to ``CoroutineRuntime/onUnhandledError`` as
/// ``ResumedTwice``, with the name and the launch site of the waiting coroutine; after a cancellation they are not
/// reported, because a late callback is then legitimate. If the resumer is released unused, the coroutine gets
/// ``CoroutineError/abandoned``. Any thread; never suspends.
public final class Resumer<Output: Sendable>: Sendable {
  let target: ResumeTarget<Output>
  init(_ target: ResumeTarget<Output>) { self.target = target }

  deinit { _ = target.resume(.failure(CoroutineError.abandoned)) }

  /// Resumes with a value.
  public func resume(_ value: Output) { resume(with: .success(value)) }
  /// Resumes with an error, which co_suspend throws.
  public func fail(_ error: any Error) { resume(with: .failure(error)) }

  /// Resumes with a value or an error.
  public func resume(with result: Result<Output, any Error>) {
    Host.touches(target)
    if target.resume(result) == .resumed {
      UnhandledErrors.report(ResumedTwice(late: "\(result)"), in: target.summary)
    }
  }

  /// Resumes by the (value, error) convention of callbacks: an error wins; with neither,
  /// ``CoroutineError/invalidCallback``.
  public func callAsFunction(_ value: Output?, _ error: (any Error)?) {
    if let error {
      fail(error)
    } else if let value {
      resume(value)
    } else {
      fail(CoroutineError.invalidCallback)
    }
  }
}

/// Turns a callback into a wait: calls `start` at once, on this stack, with a resumer, and suspends until it is used.
///
/// If the coroutine is cancelled before the call, it throws without calling `start`.
///
/// - Parameters:
///   - onCancel: Called once if cancellation ends the wait, on the coroutine, before the error is thrown: cancel the
///     work there. Not called if the work was faster.
///   - start: Passes the resumer to the code that will call back. An error that it throws is thrown, and the resumer
///     then has no effect.
/// - Returns: The value that the resumer was given.
/// - Throws: The error that the resumer was given; the error of `start`; the cancellation error;
///   ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "use `withCheckedThrowingContinuation`")
public func co_suspend<Output: Sendable>(
  onCancel: (@Sendable () -> Void)? = nil,
  _ start: (Resumer<Output>) throws -> Void
) throws -> Output {
  let (_, job) = try Carrier.beginWaiting()
  let cell = SuspendCell<Output>(job)
  do {
    try start(Resumer(cell))
  } catch {
    cell.detach()
    throw error
  }
  if let delivered = try cell.wait(.callback) {
    if case .failure = delivered { Carrier.noteFailure() }
    return try delivered.get()
  }
  onCancel?()
  throw Carrier.current?.pointee.job?.cancellation() ?? CancellationError()
}

extension SuspendCell {
  /// Ends the wait; later uses of the resumer are ignored.
  @usableFromInline
  func detach() {
    lock.withLock { state = .detached }
  }
}
