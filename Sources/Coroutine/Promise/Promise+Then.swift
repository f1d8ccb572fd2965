public import Dispatch

// The closures have types of a known shape, two words: what a generic class stores in the layout of a type parameter, its deinit
// must look the type up for, 40 ns each.

/// A derived promise: it has the user's closure beside what every promise has.
@usableFromInline
final class Link<Argument, Returned, Output: Sendable>: Promise<Output>, @unchecked Sendable {
  // Sound because `body` is set before the link is known to anyone, and used by whoever runs the handler or finds out that
  // it never will run: of these there is one (AnyPromise's phases).
  @exclusivity(unchecked) @usableFromInline final var body: (@Sendable (Argument) throws -> Returned)?

  @inlinable
  init(_ body: @escaping @Sendable (Argument) throws -> Returned, _ launchSite: LaunchSite) {
    self.body = body
    super.init(launchSite: launchSite)
  }

  @usableFromInline override func releaseBody() { body = nil }
}

extension Link where Returned == Output {
  /// Settles as the handler's end says.
  @inlinable @inline(__always)
  final func settle(byHandlerOf argument: Argument) {
    do {
      _ = succeed(try body!(argument), fromOutside: false)
    } catch {
      fail(error)
    }
  }
}

extension Link where Returned == Promise<Output> {
  /// Settles as the promise that the handler returns, or as its throw says.
  @inlinable @inline(__always)
  final func adopt(byHandlerOf argument: Argument) {
    do {
      adopt(try body!(argument))
    } catch {
      fail(error)
    }
  }
}

/// The same for closures without a parameter.
@usableFromInline
final class EndLink<Returned, Output: Sendable>: Promise<Output>, @unchecked Sendable {
  // Sound because of what Link says.
  @exclusivity(unchecked) @usableFromInline final var body: (@Sendable () -> Returned)?

  @inlinable
  init(_ body: @escaping @Sendable () -> Returned, _ launchSite: LaunchSite) {
    self.body = body
    super.init(launchSite: launchSite)
  }

  @usableFromInline override func releaseBody() { body = nil }
}

extension AnyPromise {
  /// What the handler of a link gets; `source` nil: the failure that is on its way.
  ///
  /// Copied under the lock: whoever rejects the link by hand meanwhile swaps it for another, and releases it.
  @usableFromInline
  final func failureForHandler() -> any Error {
    completion.pointee.lock.lock()
    let failure = completion.pointee.failure
    completion.pointee.lock.unlock()
    return failure.unsafelyUnwrapped
  }
}

extension Promise {
  /// Makes `link` one of this promise.
  @inlinable @inline(__always)
  final func link<Output: Sendable>(
    _ link: Promise<Output>,
    _ queue: DispatchQueue?,
    _ kind: HandlerKind,
    _ runner: @escaping PromiseRunner
  ) -> Promise<Output> {
    link.link(to: self, on: queue, kind, runner)
    return link
  }

  /// A promise for what `body` makes of the value.
  ///
  /// A failure passes by; a throw of `body` rejects. Never suspends; may be called anywhere.
  @inlinable
  public final func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) throws -> U
  ) -> Promise<U> {
    let made = Link<Success, U, U>(body, LaunchSite(file: file, line: line))
    return link(made, queue, .success) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Success, U, U>.self)
      link.settle(byHandlerOf: source.unsafelyUnwrapped.completion.value(as: Success.self))
    }
  }

  /// A promise that settles as the one that `body` makes of the value.
  ///
  /// A failure passes by; a throw of `body` rejects, and so does a circle, with ``CoroutineError/cycle``. Never suspends; may
  /// be called anywhere.
  @inlinable
  public final func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) throws -> Promise<U>
  ) -> Promise<U> {
    let made = Link<Success, Promise<U>, U>(body, LaunchSite(file: file, line: line))
    return link(made, queue, .success) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Success, Promise<U>, U>.self)
      link.adopt(byHandlerOf: source.unsafelyUnwrapped.completion.value(as: Success.self))
    }
  }

  /// In a handler of this link: it settles as `inner` does.
  ///
  /// Cancelled meanwhile, it lets go of `inner`, or leaves it alone where `isKept` says that its work counts all the same.
  @usableFromInline
  final func adopt(_ inner: Promise, isKept: Bool = false) {
    // Locked in already, it follows another besides: its node is free none the less, and the first of the two counts.
    _ = lockIn()
    if !wait(for: inner, Self.copier), !isKept { letGo(of: inner) }
  }
}
