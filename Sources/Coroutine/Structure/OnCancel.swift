import Glibc
import Synchronization

/// Runs `body`, and calls `handler` once if the coroutine is cancelled meanwhile, or a deadline passes.
///
/// For what waits where no cancellation reaches it, a blocking call for example:
///
/// ```swift
/// try co_onCancel({ sqlite3_interrupt(database) }) {
///   try co_blocking { try query(database) }
/// }
/// ```
///
/// - `handler` is called at once if the coroutine is cancelled already; else while the coroutine waits, by the thread
///   that has found the cancellation; else by the coroutine itself, when `body` throws. So a body that computes or
///   blocks its thread is told late, and one that returns meanwhile is not.
/// - It is not called when `body` has ended: if it runs then, this call waits for it.
/// - Cancellations and deadlines from outside count, those of scopes and deadlines inside `body` do not. What a
///   `co_shield` around this call hides does not count either.
/// - `handler` must neither block nor suspend.
///
/// Does not suspend by itself, and does not check cancellation. A generator's body must not yield inside.
/// - Throws: The error of `body`; ``CoroutineError/notInCoroutine`` outside a coroutine.
@available(*, noasync, message: "use `withTaskCancellationHandler`")
public func co_onCancel<Output>(
  _ handler: @escaping @Sendable () -> Void,
  _ body: () throws -> Output
) throws -> Output {
  let (_, job) = try Carrier.runningJob()
  let hook = CancelHook(handler)
  // A frame that is never signalled, with an owner. The inspection that finds a cancellation outside of it calls the
  // owner (Cancellation.swift, `scopesToCancel`), on the job's scheduler or in its place.
  var frame = CancelFrame(.bound, inside: job.pointee.frames)
  return try withUnsafeMutablePointer(to: &frame) { frame in
    frame.pointee.owner = CancelFrame.Owner(
      object: UnsafeRawPointer(Unmanaged.passUnretained(hook).toOpaque()),
      error: { _ in CancellationError() },
      cancel: { object, _ in Unmanaged<CancelHook>.fromOpaque(object).takeUnretainedValue().fire() }
    )
    job.pointee.frames = frame
    defer {
      // A body that has moved to another queue has the same record.
      job.pointee.frames = frame.pointee.outer
      hook.end()
    }
    if job.cancellation(outside: frame) != nil { hook.fire() }
    do { return try body() } catch {
      // A suspension point that finds the cancellation itself throws it, and calls no owner.
      if job.cancellation(outside: frame) != nil { hook.fire() }
      throw error
    }
  }
}

/// Calls a handler at most once, and not after the end.
///
///   ARMED --fire--> CALLING --the handler has returned--> DONE
///     |                                                     |
///     +------------------------end--------------------------+--> (end waits while it is CALLING)
private final class CancelHook: Sendable {
  private let handler: @Sendable () -> Void
  // Not shared: in a world one thread runs everything, and a handler does not wait.
  private let state = Atomic<UInt8>(CancelHook.armed)
  private static let (armed, calling, done): (UInt8, UInt8, UInt8) = (0, 1, 2)
  /// The thread that calls the handler.
  // Not shared: as above.
  private let caller = Atomic<UInt>(0)

  init(_ handler: @escaping @Sendable () -> Void) { self.handler = handler }

  func fire() {
    let (isMine, _) = state.compareExchange(
      expected: Self.armed,
      desired: Self.calling,
      ordering: .acquiringAndReleasing
    )
    guard isMine else { return }
    caller.store(UInt(pthread_self()), ordering: .relaxed)
    handler()
    state.store(Self.done, ordering: .releasing)
  }

  func end() {
    let (wasArmed, _) = state.compareExchange(
      expected: Self.armed,
      desired: Self.done,
      ordering: .acquiringAndReleasing
    )
    if wasArmed { return }
    // A handler that has thrown the coroutine out of its own call would wait for itself.
    while state.load(ordering: .acquiring) == Self.calling, caller.load(ordering: .relaxed) != UInt(pthread_self()) {
      sched_yield()
    }
  }
}
