public import Dispatch

// Handlers that leave the outcome as it is. They run whatever happens, also when the link itself is cancelled: then at once.

extension Promise {
  /// The outcome that a handler of this link may look at: the upstream's, or, where the link was settled first, its own.
  @usableFromInline
  final func outcomeForHandler(_ source: AnyPromise?) -> Result<Success, any Error> {
    if let source { return .success(source.completion.value(as: Success.self)) }
    // Fulfilled by hand; a value that is there stays there, a failure may be swapped until it is copied.
    return isFulfilled ? .success(completion.value(as: Success.self)) : .failure(failureForHandler())
  }

  /// Runs `body` with the outcome, whichever it is, and keeps it.
  @inlinable
  public final func tap(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Result<Success, any Error>) -> Void
  ) -> Promise {
    let made = Link<Result<Success, any Error>, Void, Success>(body, LaunchSite(file: file, line: line))
    return link(made, queue, .always) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Result<Success, any Error>, Void, Success>.self)
      let outcome = link.outcomeForHandler(source)
      try? link.body!(outcome)
      _ = link.settle(outcome)
    }
  }

  /// Runs `body` at the end, whatever it is, and keeps the outcome.
  @inlinable
  public final func ensure(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () -> Void
  ) -> Promise { ensure(on: queue, LaunchSite(file: file, line: line), body) }

  @inlinable
  final func ensure(on queue: DispatchQueue?, _ launchSite: LaunchSite, _ body: @escaping @Sendable () -> Void) -> Promise {
    let made = EndLink<Void, Success>(body, launchSite)
    return link(made, queue, .always) { promise, source, _ in
      let link = unsafeDowncast(promise, to: EndLink<Void, Success>.self)
      let outcome = link.outcomeForHandler(source)
      link.body!()
      _ = link.settle(outcome)
    }
  }

  /// As ensure, and waits for what `body` returns: the outcome is passed on when that is settled.
  ///
  /// A failure of the promise that `body` returns is reported, if nobody else sees it, and changes nothing.
  @inlinable
  public final func ensureThen(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () -> Promise<Void>
  ) -> Promise {
    let made = EndLink<Promise<Void>, Success>(body, LaunchSite(file: file, line: line))
    return link(made, queue, .always) { promise, source, _ in
      let link = unsafeDowncast(promise, to: EndLink<Promise<Void>, Success>.self)
      let outcome = link.outcomeForHandler(source)
      let cleanup = link.body!()
      // Cleaning up is not given up because nobody waits for the link any more.
      link.adopt(Promise.afterwards(cleanup, outcome, link.launchSite), isKept: true)
    }
  }

  /// A promise with `outcome`, as soon as `cleanup` has settled.
  @usableFromInline
  static func afterwards(_ cleanup: Promise<Void>, _ outcome: Result<Success, any Error>, _ launchSite: LaunchSite)
    -> Promise
  {
    let link = EndLink<Result<Success, any Error>, Success>({ outcome }, launchSite)
    link.link(to: cleanup, on: nil, .always) { promise, source, _ in
      let link = unsafeDowncast(promise, to: EndLink<Result<Success, any Error>, Success>.self)
      if source == nil, !link.isSettled { link.reportFailureOnItsWay() }
      _ = link.settle(link.body!())
    }
    return link
  }

  /// Observes the value and passes it on; a throw of `body` rejects.
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

  /// The same promise without the value.
  @inlinable
  public final func asVoid(file: StaticString = #fileID, line: UInt = #line) -> Promise<Void> {
    voided(LaunchSite(file: file, line: line))
  }

  @inlinable
  final func voided(_ launchSite: LaunchSite) -> Promise<Void> {
    link(Promise<Void>(launchSite: launchSite), nil, []) { promise, _, _ in
      _ = unsafeDowncast(promise, to: Promise<Void>.self).succeed((), fromOutside: false)
    }
  }
}

extension AnyPromise {
  @usableFromInline
  final func reportFailureOnItsWay() {
    let error = failureForHandler()
    if !(error is CancellationError) {
      CoroutineRuntime.onUnhandledError(error, "the promise of an ensureThen (created at \(launchSite.description))")
    }
  }
}
