// A coroutine waits for a callback. It and its resumer share a cell (OneShot.swift), which counts one use of the
// resumer: the first one, or its release without a use. If the coroutine is cancelled before, none counts.

// All that handles the outcome is inlinable: it is then specialised for the outcome's type. In generic code each copy
// of a Result looks its type up, and these lookups took most of a resumer's time.

/// The target of a resumer: a waiting coroutine or a promise.
@usableFromInline
class ResumeTarget<Output: Sendable>: @unchecked Sendable {
  // Sound because it has no state of its own.
  @usableFromInline init() {}

  /// Resumes, and returns the state before: `pending` for the one use that counts.
  @usableFromInline func resume(_ outcome: Result<Output, any Error>) -> OneShot.State { .detached }

  /// Reports a second use, which may come after the target's end.
  @usableFromInline func report(_ error: any Error) { UnhandledErrors.report(.init(error, in: "a coroutine")) }

  /// The resumer was released.
  @usableFromInline func abandon() { _ = resume(.failure(CoroutineError.abandoned)) }
}

/// The cell of a coroutine that waits for a callback, or for a thread of the blocking pool.
@usableFromInline
final class SuspendCell<Output: Sendable>: ResumeTarget<Output>, @unchecked Sendable {
  // Sound because `one` and `result` are accessed as OneShot.swift says.
  /// Accessed through `one` only.
  @exclusivity(unchecked) @usableFromInline var storage: OneShot
  @usableFromInline let lock = Shared<SpinLock>()
  @exclusivity(unchecked) @usableFromInline var result: Result<Output, any Error>?
  /// The coroutine, for reports; its name is retained, because the coroutine may have ended by then.
  @usableFromInline let origin: JobOrigin

  @inlinable
  init(_ job: JobRef) {
    storage = OneShot(job)
    origin = JobOrigin(of: job)
    super.init()
    checkAddress(one, of: &storage)
  }

  @inlinable var one: OneShotRef { propertyAddress(in: self, at: 0, as: OneShot.self) }

  @usableFromInline override func report(_ error: any Error) { UnhandledErrors.report(.init(error, in: origin)) }

  @inlinable override func resume(_ outcome: Result<Output, any Error>) -> OneShot.State {
    lock.lock()
    guard one.settle() else {
      defer { lock.unlock() }
      return one.pointee.state
    }
    result = outcome
    one.wake(leaving: lock.known)
    return .pending
  }

  /// Makes the error only if it counts.
  ///
  /// The state may be read before `resume`: only a cancellation can change it meanwhile, after which the error is late.
  @usableFromInline override func abandon() {
    if lock.withLock({ one.pointee.state }) == .pending { super.abandon() }
  }

  /// Suspends until resumed; throws if cancelled before, after a call of `onCancel`.
  @inlinable @inline(__always)
  func wait(_ kind: WaitKind, onCancel: () -> Void) throws -> Result<Output, any Error> {
    try one.wait(kind, lock.known, onCancel: onCancel)
    return result.take().unsafelyUnwrapped
  }

  /// Makes all uses of the resumer late, also one that was before: `start` has thrown.
  @usableFromInline func detach() { lock.withLock { one.pointee.state = .detached } }
}

/// Resumes a coroutine that waits in ``co_suspend(onCancel:_:)``.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/RecipeBoundarySnippets.swift -->
/// ```swift
/// let resumer = Unmanaged<Resumer<Int32>>.fromOpaque(context).takeRetainedValue()
/// if result < 0 { resumer.fail(ErrnoError(-result)) } else { resumer.resume(result) }
/// ```
///
/// The first use wins. Later uses are ignored, and reported to ``CoroutineRuntime/unhandledErrorHandler`` as
/// ``ResumerUsedTwiceError``, with the name and the launch site of the waiting coroutine; after a cancellation they are
/// not reported, because a late callback is then legitimate. If the resumer is released unused, the coroutine gets
/// ``CoroutineError/abandoned``. Any thread; never suspends.
public final class Resumer<Output: Sendable>: Sendable {
  @usableFromInline let target: ResumeTarget<Output>
  /// Whether the target is a SuspendCell: a call of it is specialised, and one by the table of the class is not.
  @usableFromInline let isForCell: Bool

  init(_ target: ResumeTarget<Output>) { (self.target, isForCell) = (target, false) }
  @inlinable init(cell: SuspendCell<Output>) { (target, isForCell) = (cell, true) }

  deinit { target.abandon() }

  /// Resumes with a value.
  @inlinable public func resume(_ value: Output) { resume(with: .success(value)) }
  /// Resumes with an error, which co_suspend throws.
  @inlinable public func fail(_ error: any Error) { resume(with: .failure(error)) }

  /// Resumes with a value or an error.
  @inlinable public func resume(with result: Result<Output, any Error>) {
    let state =
      isForCell ? unsafeDowncast(target, to: SuspendCell<Output>.self).resume(result) : target.resume(result)
    if state == .settled { reportSecondUse(result) }
  }

  @usableFromInline @inline(never)
  func reportSecondUse(_ result: Result<Output, any Error>) {
    target.report(ResumerUsedTwiceError(late: "\(result)"))
  }

  /// Resumes by the (value, error) convention of callbacks: an error wins; with neither,
  /// ``CoroutineError/invalidCallback``.
  @inlinable public func callAsFunction(_ value: Output?, _ error: (any Error)?) {
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
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// func download() throws -> String {
///   var item: DispatchWorkItem?
///   defer { item?.cancel() }
///   return try co_suspend { done in
///     item = startDownload { text, error in done(text, error) }
///   }
/// }
/// ```
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
@inlinable
public func co_suspend<Output: Sendable>(
  onCancel: (@Sendable () -> Void)? = nil,
  _ start: (Resumer<Output>) throws -> Void
) throws -> Output {
  let (_, job) = try Carrier.beginWaiting()
  let cell = SuspendCell<Output>(job)
  do {
    try start(Resumer(cell: cell))
  } catch {
    cell.detach()
    throw error
  }
  return try cell.wait(.callback) { onCancel?() }.received()
}
