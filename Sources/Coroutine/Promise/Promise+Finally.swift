public import Dispatch

// Handlers that keep the outcome. They run in every case. If the link itself is cancelled, they run at once.

extension Promise {
  /// Returns the outcome for a handler of this link: the upstream's, or the link's own if the link was settled first.
  @usableFromInline
  final func outcomeForHandler(_ source: AnyPromise?) -> Result<Success, any Error> {
    if let source { return .success(source.completion.value(as: Success.self)) }
    // The link was settled from outside. A value stays as it is. A failure may be replaced until it is copied.
    return isFulfilled ? .success(completion.value(as: Success.self)) : .failure(failureForHandler())
  }

  /// Runs `body` with the outcome, and passes the outcome on.
  @inlinable
  public final func tap(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Result<Success, any Error>) -> Void
  ) -> Promise { tap(on: queue, LaunchSite(file: file, line: line), body) }

  @inlinable
  final func tap(
    on queue: DispatchQueue?,
    _ launchSite: LaunchSite,
    _ body: @escaping @Sendable (Result<Success, any Error>) -> Void
  ) -> Promise {
    let made = Link<Result<Success, any Error>, Void, Success>(body, launchSite)
    return link(made, queue, .always) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Result<Success, any Error>, Void, Success>.self)
      let outcome = link.outcomeForHandler(source)
      try? link.body!(outcome)
      _ = link.settle(outcome)
    }
  }

  /// Runs `body` at the end, whatever the outcome, and passes the outcome on.
  @inlinable
  public final func ensure(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () -> Void
  ) -> Promise { tap(on: queue, LaunchSite(file: file, line: line)) { _ in body() } }

  /// Runs `body` at the end, and passes the outcome on once the promise that `body` returns has settled.
  ///
  /// A failure of the promise that `body` returns changes nothing. It is reported as unhandled if nothing observes it.
  @inlinable
  public final func ensureThen(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () -> Promise<Void>
  ) -> Promise {
    let launchSite = LaunchSite(file: file, line: line)
    let made = Link<Result<Success, any Error>, Promise<Void>, Success>({ _ in body() }, launchSite)
    return link(made, queue, .always) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Result<Success, any Error>, Promise<Void>, Success>.self)
      let outcome = link.outcomeForHandler(source)
      guard let cleanup = try? link.body!(outcome) else { return }
      // The cleanup continues even if nothing waits for the link any more.
      link.followReturned(Promise.afterwards(cleanup, outcome, link.launchSite), isKept: true)
    }
  }

  /// Returns a promise that settles with `outcome` once `cleanup` has settled.
  @usableFromInline
  static func afterwards(_ cleanup: Promise<Void>, _ outcome: Result<Success, any Error>, _ launchSite: LaunchSite)
    -> Promise
  {
    let link = Promise(launchSite: launchSite)
    link.link(to: cleanup, on: nil, .always) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Promise.self)
      if source == nil, !link.isSettled { link.reportFailureOnItsWay() }
      _ = link.settle(outcome)
    }
    return link
  }

  /// Runs `body` with the value, and passes the value on.
  ///
  /// An error that `body` throws rejects the result.
  @inlinable
  public final func get(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) throws -> Void
  ) -> Promise {
    then(on: queue, file: file, line: line) { value throws -> Success in
      try body(value)
      return value
    }
  }

  /// Returns a promise that settles as this promise does, without the value.
  @inlinable
  public final func asVoid(file: StaticString = #fileID, line: UInt = #line) -> Promise<Void> {
    voided(LaunchSite(file: file, line: line))
  }

  @inlinable
  final func voided(_ launchSite: LaunchSite) -> Promise<Void> {
    let made = Promise<Void>(launchSite: launchSite)
    made.isPassive = true
    return link(made, nil, []) { promise, _, _ in
      _ = unsafeDowncast(promise, to: Promise<Void>.self).succeed((), fromOutside: false)
    }
  }
}

extension AnyPromise {
  @usableFromInline
  final func reportFailureOnItsWay() {
    let error = failureForHandler()
    if !(error is CancellationError) {
      let origin = "the promise of an ensureThen (created at \(launchSite.description))"
      UnhandledErrors.report(.init(error, in: origin, at: launchSite))
    }
  }
}
