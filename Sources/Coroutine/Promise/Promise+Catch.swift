public import Dispatch

// Where a chain ends. A failure that no `catch` has wanted is reported as unhandled, with the place of the promise that was
// to be caught.

/// What is left of a chain after its terminal `catch`: something to run at the very end.
public struct ChainEnd: Sendable {
  fileprivate let promise: Promise<Void>

  /// Runs `body` once, after the `catch` handler, or after the value where there was none to run.
  @discardableResult
  public func finally(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> ChainEnd {
    ChainEnd(promise: promise.ensure(on: queue, body))
  }
}

/// What is left of a chain after a `catch` of some failures: more of them, one of all others, something to run at the end.
///
/// The first that matches gets the failure. One that nothing matches is reported to ``CoroutineRuntime/onUnhandledError``.
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

  /// Handles every other failure and ends the chain.
  @discardableResult
  public func `catch`(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (any Error) -> Void
  ) -> ChainEnd { promise.catch(on: queue, body) }

  /// Runs `body` once at the end, whatever it is.
  ///
  /// A failure that nothing before it matched is still unhandled.
  @discardableResult
  public func finally(
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> PartialCatch { PartialCatch(promise: promise.ensure(on: queue, promise.launchSite, body)) }
}

extension Promise {
  /// Handles the failure, cancellation included, and ends the chain.
  ///
  /// Never suspends; may be called anywhere.
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

  /// Handles failures of one type, and ends the chain for them; `only:` of more may follow, and a `catch` of the rest.
  ///
  /// Never suspends; may be called anywhere.
  @discardableResult
  public final func `catch`<E: Error>(
    only type: E.Type,
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable (E) -> Void
  ) -> PartialCatch { PartialCatch(promise: voided(launchSite)).catch(only: type, on: queue, body) }

  /// As catch of a type, for one failure.
  @discardableResult
  public final func `catch`<E: Error & Equatable>(
    only error: E,
    on queue: DispatchQueue? = nil,
    _ body: @escaping @Sendable () -> Void
  ) -> PartialCatch { PartialCatch(promise: voided(launchSite)).catch(only: error, on: queue, body) }
}
