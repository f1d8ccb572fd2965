public import Dispatch

// The end of a chain. A failure that no `catch` handles is reported as unhandled, with the launch site of the promise
// on which `catch` was called.

/// The rest of a chain after its last `catch`.
///
/// It can run a closure at the very end.
public struct ChainEnd: Sendable {
  fileprivate let promise: Promise<Void>

  /// Runs `body` once, after the `catch` handler, or after the value if the handler had no failure to handle.
  @discardableResult
  public func finally(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> ChainEnd {
    ChainEnd(promise: promise.ensure(on: queue, body))
  }
}

/// The rest of a chain after a `catch` of some failures.
///
/// It can add further `catch` handlers, a handler of all other failures, and a closure to run at the end. The first
/// handler that matches gets the failure. A failure that no handler matches is reported to
/// ``CoroutineRuntime/unhandledErrorHandler``.
public struct PartialCatch: Sendable {
  fileprivate let promise: Promise<Void>

  /// Handles failures of one type.
  @discardableResult
  public func `catch`<E: Error>(
    only type: E.Type,
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (E) -> Void
  ) -> PartialCatch {
    PartialCatch(promise: promise.rescue(on: queue, promise.launchSite) { (error: E) throws -> Void in body(error) })
  }

  /// Handles one failure.
  @discardableResult
  public func `catch`<E: Error & Equatable>(
    only error: E,
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> PartialCatch {
    PartialCatch(promise: promise.rescue(only: error, on: queue, promise.launchSite) { () throws -> Void in body() })
  }

  /// Handles every other failure, and ends the chain.
  @discardableResult
  public func `catch`(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (any Error) -> Void
  ) -> ChainEnd { promise.catch(on: queue, body) }

  /// Runs `body` once at the end, whatever the outcome.
  ///
  /// A failure that no handler before it matched is still unhandled.
  @discardableResult
  public func finally(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> PartialCatch { PartialCatch(promise: promise.tap(on: queue, promise.launchSite) { _ in body() }) }
}

extension Promise {
  /// Handles every failure, cancellation included, and ends the chain.
  ///
  /// Never suspends. May be called anywhere.
  @discardableResult
  public final func `catch`(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (any Error) -> Void
  ) -> ChainEnd {
    let link = Link<any Error, Void, Void>(body, launchSite)
    link.link(to: self, on: queue, .failure) { promise, _, handles in
      let link = unsafeDowncast(promise, to: Link<any Error, Void, Void>.self)
      if handles { try? link.body!(link.failureForHandler()) }
      _ = link.succeed((), fromOutside: false)
    }
    return ChainEnd(promise: link)
  }

  /// Handles failures of one type, and ends the chain for them.
  ///
  /// Further `catch(only:)` handlers may follow, and a `catch` of all other failures. Never suspends. May be called
  /// anywhere.
  @discardableResult
  public final func `catch`<E: Error>(
    only type: E.Type,
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (E) -> Void
  ) -> PartialCatch { PartialCatch(promise: voided(launchSite)).catch(only: type, on: queue, body) }

  /// Handles one failure, and ends the chain for it.
  ///
  /// Further handlers may follow, as after a `catch` of a type.
  @discardableResult
  public final func `catch`<E: Error & Equatable>(
    only error: E,
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> PartialCatch { PartialCatch(promise: voided(launchSite)).catch(only: error, on: queue, body) }
}
