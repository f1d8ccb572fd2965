public import Dispatch

// The closures have types of a known shape, two words. If a generic class stores a value in the layout of a type
// parameter, its deinit must look up the type, which takes 40 ns for each value.

/// A derived promise, which stores the user's closure.
@usableFromInline
final class Link<Argument, Returned, Output: Sendable>: Promise<Output>, @unchecked Sendable {
  // Sound because `body` is set before the link is known to any other thread. After that, one thread uses it: the
  // thread that runs the handler, or the thread that finds that the handler will never run (AnyPromise's phases).
  @exclusivity(unchecked) @usableFromInline final var body: (@Sendable (Argument) throws -> Returned)?

  @inlinable
  init(_ body: @escaping @Sendable (Argument) throws -> Returned, _ launchSite: LaunchSite) {
    self.body = body
    super.init(launchSite: launchSite)
  }

  @usableFromInline override func releaseBody() { body = nil }
}

extension Link where Returned == Output {
  /// Settles with the handler's result or error.
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
  /// Follows the promise that the handler returns, or rejects with the handler's error.
  @inlinable @inline(__always)
  final func follow(byHandlerOf argument: Argument) {
    do {
      followReturned(try body!(argument))
    } catch {
      fail(error)
    }
  }
}

extension AnyPromise {
  /// Returns the failure for the handler of a link whose `source` is nil.
  ///
  /// It is copied under the lock, because a thread that rejects the link from outside replaces the failure and
  /// releases it.
  @usableFromInline
  final func failureForHandler() -> any Error {
    completion.lock()
    let failure = completion.pointee.failure
    completion.unlock()
    return failure.unsafelyUnwrapped
  }
}

extension Promise {
  /// Makes `link` wait for this promise, and returns `link`.
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

  /// Returns a promise for the result of `body`, which gets the value.
  ///
  /// A failure is passed on without calling `body`. An error that `body` throws rejects the new promise. Never
  /// suspends. May be called anywhere.
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

  /// Returns a promise that settles as the promise that `body` returns, which gets the value.
  ///
  /// A failure is passed on without calling `body`. An error that `body` throws rejects the new promise, and so does a
  /// cycle, with ``CoroutineError/cycle``. Never suspends. May be called anywhere.
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
      link.follow(byHandlerOf: source.unsafelyUnwrapped.completion.value(as: Success.self))
    }
  }

  /// Follows `inner`, the promise that this link's handler returned.
  ///
  /// If the link was cancelled meanwhile, it lets go of `inner`. If `isKept`, it leaves `inner` alone, because the work
  /// of `inner` counts nevertheless.
  @usableFromInline
  final func followReturned(_ inner: Promise, isKept: Bool = false) {
    // A link that is already locked in follows a second promise: its own waiter is free, and the first to settle
    // counts.
    _ = lockIn()
    if !wait(for: inner, Self.copier), !isKept { letGo(of: inner) }
  }
}
