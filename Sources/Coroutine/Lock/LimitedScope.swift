import Synchronization

/// Launches the children of a `co_scope(limit:)`, of which a limited number run at a time.
///
/// <!-- compiled: Tests/CoroutineTests/ComingFrom/GoTests.swift -->
/// ```swift
/// try co_scope(limit: 8) { scope in
///   try scope.launch { try co_yield() }
///   _ = scope.tryLaunch { try co_yield() }
/// }
/// ```
///
/// Valid until that call returns.
public struct LimitedScope: Sendable {
  /// The scope of the children, for `cancel` and `stop`; children that are launched by it do not count.
  public let scope: Scope
  private let permits: FairSemaphore

  init(_ scope: Scope, _ limit: Int) {
    self.scope = scope
    permits = FairSemaphore(limit)
  }

  /// Launches a child as soon as fewer than the limit run.
  ///
  /// Suspends until then; callers are served first come, first served. If the coroutine is cancelled, it throws and
  /// launches nothing. A child may launch others, and must not wait for them if they could be what holds the limit.
  /// - Throws: The cancellation error; ``CoroutineError/notInCoroutine`` outside a coroutine.
  @discardableResult
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func launch<Success: Sendable>(
    name: String? = nil,
    stack: StackSize = .standard,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () throws -> Success
  ) throws -> Job<Success> {
    try permits.acquire()
    return launchHolding(HeldPermit(permits), name, stack, file, line, body)
  }

  /// Launches a child if fewer than the limit run and nobody waits to launch one; returns nil otherwise.
  ///
  /// Never suspends; any thread.
  public func tryLaunch<Success: Sendable>(
    name: String? = nil,
    stack: StackSize = .standard,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () throws -> Success
  ) -> Job<Success>? {
    guard permits.tryAcquire() else { return nil }
    return launchHolding(HeldPermit(permits), name, stack, file, line, body)
  }

  private func launchHolding<Success: Sendable>(
    _ permit: HeldPermit,
    _ name: String?,
    _ stack: StackSize,
    _ file: StaticString,
    _ line: UInt,
    _ body: @escaping @Sendable () throws -> Success
  ) -> Job<Success> {
    scope.launch(name: name, stack: stack, file: file, line: line) {
      defer { permit.release() }
      return try body()
    }
  }
}

/// A permit of a child, which is released once: when the body has ended, or when a body that never runs is released.
private final class HeldPermit: Sendable {
  private let permits: FairSemaphore
  private let isHeld = Shared(Atomic(true))

  init(_ permits: FairSemaphore) { self.permits = permits }
  deinit { release() }

  func release() {
    if isHeld.known.exchange(false, ordering: .acquiringAndReleasing) { permits.release() }
  }
}

/// Runs `body`, and returns after every child has ended that it launched; at most `limit` of them run at a time.
///
/// ```swift
/// try co_scope(limit: 8) { scope in
///   for url in urls {
///     try scope.launch { try fetch(url) }   // waits while eight run
///   }
/// }
/// ```
///
/// In all other respects it behaves as ``co_scope(failures:_:)`` does. For results in the order of the elements, use
/// ``co_map(_:limit:name:file:line:_:)``.
///
/// - Parameters:
///   - limit: The largest number of children that run at the same time.
///   - failures: Whether a child's failure ends the scope, or concerns that child alone.
///   - body: Launches the children; its result is that of the call.
/// - Throws: What `co_scope` throws; ``CoroutineError/invalidCount(_:)`` if the limit is below one.
@discardableResult
@available(*, noasync, message: "use `withThrowingTaskGroup`, or await the `value` of a coroutine that does this")
public func co_scope<Output>(
  limit: Int,
  failures: Scope.Failures = .together,
  _ body: (LimitedScope) throws -> Output
) throws -> Output {
  if limit < 1 { throw CoroutineError.invalidCount(limit) }
  return try co_scope(failures: failures) { scope in try body(LimitedScope(scope, limit)) }
}
