import Synchronization

// A callback API meets a coroutine.
//
// The coroutine and its resumers share a cell. Its state, under its lock:
//
//   PENDING --- resumed: the value is stored, the wait claimed ---> RESUMED      (first use, once)
//   PENDING --- the last resumer is released unused ---> RESUMED with `abandoned`
//   PENDING --- cancelled: a resumer's claim loses, or the coroutine is back ---> DETACHED
//
// Between delivered and cancelled exactly one wins: the claim of the wait decides, and it and the state change are one
// critical section. A resumer that is used while `start` still runs needs no claim: the coroutine finds RESUMED and does not
// wait.

/// What a resumer resumes: a coroutine that waits, or a promise.
@usableFromInline
class ResumeTarget<Output: Sendable>: @unchecked Sendable {
  // Sound because it has no state of its own.
  @usableFromInline enum State: UInt8 { case pending, resumed, detached }
  init() {}

  /// What the state was: `pending` for the one use that counts.
  @usableFromInline func resume(_ outcome: Result<Output, any Error>) -> State { .detached }

  /// Who it is, for the report of a second use, which may come after its end.
  var summary: String { "a coroutine" }
}

@usableFromInline
final class SuspendCell<Output: Sendable>: ResumeTarget<Output>, @unchecked Sendable {
  // Sound because everything mutable is under `lock`.
  @usableFromInline let lock = SpinLock()
  @exclusivity(unchecked) @usableFromInline var state = State.pending
  @exclusivity(unchecked) @usableFromInline var result: Result<Output, any Error>?
  /// The coroutine that waits, from the moment it is about to park.
  @exclusivity(unchecked) @usableFromInline var waiter: (job: JobRef, epoch: WaitEpoch)?
  /// The coroutine, for reports; its name is held, because it may have ended by then.
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
    // A claim that loses has lost against a cancellation.
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

  /// Suspends until resumed; nil: cancelled before that.
  @usableFromInline
  func wait(_ kind: WaitKind) throws -> Result<Output, any Error>? {
    let (carrier, job) = try Carrier.requireJob()
    // `start` was foreign code: it may have cancelled its own coroutine, and such an interrupt has come and gone.
    let isCancelled = job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0 && job.cancellation() != nil
    lock.lock()
    if state == .pending, !isCancelled {
      // A cancellation is not thrown here: the caller finds no result.
      _ = try? WaitQueue.park(carrier, job, kind) { epoch in
        waiter = (job, epoch)
        lock.unlock()
      } withdraw: {}
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
/// The first use wins; later ones are reported to ``CoroutineRuntime/onUnhandledError`` as ``ResumedTwice``, with the
/// name and the launch place of the coroutine that waited, and ignored, except after a cancellation, where a late
/// callback is nobody's fault. Released unused, the coroutine gets ``CoroutineError/abandoned``. Any thread; never
/// suspends.
public final class Resumer<Output: Sendable>: Sendable {
  let target: ResumeTarget<Output>
  init(_ target: ResumeTarget<Output>) { self.target = target }

  deinit { _ = target.resume(.failure(CoroutineError.abandoned)) }

  /// Resumes with a value.
  public func resume(_ value: Output) { resume(with: .success(value)) }
  /// Resumes with an error, which co_suspend throws.
  public func fail(_ error: any Error) { resume(with: .failure(error)) }

  /// Resumes with either.
  public func resume(with result: Result<Output, any Error>) {
    if target.resume(result) == .resumed {
      UnhandledErrors.report(ResumedTwice(late: "\(result)"), in: target.summary)
    }
  }

  /// The (value, error) convention of callbacks: an error wins; with neither, ``CoroutineError/invalidCallback``.
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

/// Turns a callback into a wait: calls `start` at once, on this stack, with a resumer, and suspends until that is used.
///
/// - Parameters:
///   - onCancel: Called once if cancellation ends the wait, on the coroutine, before the error is thrown: call the work off
///     there. Not called when the work was faster.
///   - start: Hands the resumer to whoever will call back. An error that it throws is thrown; the resumer is then dead.
/// - Returns: What the resumer was given.
///
/// Cancelled before, it throws without calling `start`. Off a coroutine ``CoroutineError/notInCoroutine``.
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
  /// Nobody waits any more; what comes late is ignored.
  @usableFromInline
  func detach() {
    lock.withLock { state = .detached }
  }
}
