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

// MARK: - Values

// Links that convert a value or an outcome.

extension Promise {
  /// Returns a promise that `body` settles through a resumer.
  ///
  /// `body` gets the value. A failure is passed on without calling `body`. An error that `body` throws rejects the new
  /// promise. If the resumer is released unused, the new promise rejects with ``CoroutineError/abandoned``.
  public final func then<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success, Resumer<U>) throws -> Void
  ) -> Promise<U> {
    then(on: queue, file: file, line: line) { value throws -> Promise<U> in
      Promise<U>(file: file, line: line) { try body(value, $0) }
    }
  }

  /// Returns a promise for the result of `body`, which gets the outcome: a value or a failure.
  ///
  /// An error that `body` throws rejects the new promise. Never suspends. May be called anywhere.
  @inlinable
  public final func thenResult<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Result<Success, any Error>) throws -> U
  ) -> Promise<U> {
    let made = Link<Result<Success, any Error>, U, U>(body, LaunchSite(file: file, line: line))
    return link(made, queue, .either) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Result<Success, any Error>, U, U>.self)
      link.settle(byHandlerOf: link.outcomeOfUpstream(source))
    }
  }

  /// Returns a promise that settles as the promise that `body` returns, which gets the outcome.
  ///
  /// An error that `body` throws rejects the new promise. Never suspends. May be called anywhere.
  @inlinable
  public final func thenResult<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Result<Success, any Error>) throws -> Promise<U>
  ) -> Promise<U> {
    let made = Link<Result<Success, any Error>, Promise<U>, U>(body, LaunchSite(file: file, line: line))
    return link(made, queue, .either) { promise, source, _ in
      let link = unsafeDowncast(promise, to: Link<Result<Success, any Error>, Promise<U>, U>.self)
      link.follow(byHandlerOf: link.outcomeOfUpstream(source))
    }
  }

  /// Returns a promise for the result of `body`, which gets the value.
  ///
  /// A nil result rejects with ``PromiseValueMissingError``.
  public final func compactMap<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) throws -> U?
  ) -> Promise<U> {
    then(on: queue, file: file, line: line) { value throws -> U in
      guard let mapped = try body(value) else { throw PromiseValueMissingError(value: value, wanted: U.self) }
      return mapped
    }
  }

  /// Makes each element into a promise, and returns a promise for their values, in the order of the elements.
  public final func thenMap<Element: Sendable, U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Element) throws -> Promise<U>
  ) -> Promise<[U]> where Success == [Element] {
    then(on: queue, file: file, line: line) { elements throws -> Promise<[U]> in
      Promise<U>.all(try elements.map(body), file: file, line: line)
    }
  }

  /// Passes the value on, or rejects with `error` or ``PromiseValidationError`` if `predicate` is false for the value.
  public final func validate(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    else error: (any Error)? = nil,
    _ predicate: @escaping @Sendable (Success) throws -> Bool
  ) -> Promise {
    then(on: queue, file: file, line: line) { value throws -> Success in
      guard try predicate(value) else { throw error ?? PromiseValidationError(value: value) }
      return value
    }
  }
}

extension AnyPromise {
  /// Returns the outcome of the upstream, a promise of a `Success`.
  ///
  /// Called in a handler of this link.
  @inlinable
  final func outcomeOfUpstream<Success: Sendable>(_ source: AnyPromise?) -> Result<Success, any Error> {
    source.map { .success($0.completion.value(as: Success.self)) } ?? .failure(failureForHandler())
  }
}

/// The error of a `compactMap` whose closure returned nil.
public struct PromiseValueMissingError: Error, CustomStringConvertible {
  /// The value that the closure got.
  public var value: any Sendable
  /// The type that the closure should have returned.
  public var wanted: any Any.Type
  /// Creates the error.
  public init(value: any Sendable, wanted: any Any.Type) { (self.value, self.wanted) = (value, wanted) }
  /// A sentence that describes the error.
  public var description: String {
    "no \(asWord(wanted)) can be made of \(asLine(value)); return one, or throw an error that says why not"
  }
}

/// The error of a value that `validate` has rejected.
public struct PromiseValidationError: Error, CustomStringConvertible {
  /// The value.
  public var value: any Sendable
  /// Creates the error.
  public init(value: any Sendable) { self.value = value }
  /// A sentence that describes the error.
  public var description: String { "the value \(asLine(value)) did not pass validate; give it an error to say why" }
}

// MARK: - Failures

extension Promise {
  /// Handles every failure, cancellation included, and replaces it by the value that `body` returns.
  ///
  /// A value is passed on. An error that `body` throws rejects the new promise. Never suspends. May be called anywhere.
  @inlinable
  public final func recover(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (any Error) throws -> Success
  ) -> Promise { recover(on: queue, LaunchSite(file: file, line: line), body) }

  @inlinable
  final func recover(
    on queue: DispatchQueue?,
    _ launchSite: LaunchSite,
    _ body: @escaping @Sendable (any Error) throws -> Success
  ) -> Promise {
    let made = Link<any Error, Success, Success>(body, launchSite)
    return link(made, queue, .failure) { promise, source, handles in
      let link = unsafeDowncast(promise, to: Link<any Error, Success, Success>.self)
      guard handles else { return link.copy(source.unsafelyUnwrapped) }
      link.settle(byHandlerOf: link.failureForHandler())
    }
  }

  /// Handles every failure, cancellation included, and settles as the promise that `body` returns.
  @inlinable @_disfavoredOverload  // A body that only throws fits both.
  public final func recover(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (any Error) throws -> Promise
  ) -> Promise {
    let made = Link<any Error, Promise, Success>(body, LaunchSite(file: file, line: line))
    return link(made, queue, .failure) { promise, source, handles in
      let link = unsafeDowncast(promise, to: Link<any Error, Promise, Success>.self)
      guard handles else { return link.copy(source.unsafelyUnwrapped) }
      link.follow(byHandlerOf: link.failureForHandler())
    }
  }

  /// Handles failures of one type, which the parameter of `body` names.
  ///
  /// Passes values and other failures on.
  @inlinable
  public final func rescue<E: Error>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (E) throws -> Success
  ) -> Promise { rescue(on: queue, LaunchSite(file: file, line: line), body) }

  @inlinable
  final func rescue<E: Error>(
    on queue: DispatchQueue?,
    _ launchSite: LaunchSite,
    _ body: @escaping @Sendable (E) throws -> Success
  ) -> Promise {
    recover(on: queue, launchSite) { (error: any Error) throws -> Success in
      guard let match = error as? E else { throw error }
      return try body(match)
    }
  }

  /// Handles failures of one type, and settles as the promise that `body` returns.
  ///
  /// Passes values and other failures on.
  @inlinable @_disfavoredOverload  // A body that only throws fits both.
  public final func rescue<E: Error>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (E) throws -> Promise
  ) -> Promise {
    recover(on: queue, file: file, line: line) { (error: any Error) throws -> Promise in
      guard let match = error as? E else { throw error }
      return try body(match)
    }
  }

  /// Handles one failure.
  ///
  /// Passes values and other failures on.
  @inlinable
  public final func rescue<E: Error & Equatable>(
    only error: E,
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () throws -> Success
  ) -> Promise { rescue(only: error, on: queue, LaunchSite(file: file, line: line), body) }

  @inlinable
  final func rescue<E: Error & Equatable>(
    only wanted: E,
    on queue: DispatchQueue?,
    _ launchSite: LaunchSite,
    _ body: @escaping @Sendable () throws -> Success
  ) -> Promise {
    recover(on: queue, launchSite) { (error: any Error) throws -> Success in
      guard error as? E == wanted else { throw error }
      return try body()
    }
  }
}

// MARK: - Either outcome

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

// MARK: - Time

// Promises and time. They use the timers of the schedulers, so no thread and no coroutine waits.

extension Promise where Success == Void {
  /// Returns a promise that is fulfilled after `duration`, never early.
  ///
  /// Cancelling the promise cancels the timer.
  public static func after(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    let promise = Promise(file: file, line: line)
    let timer = PromiseTimer { _ = promise.fulfill(()) }
    let stopper = PromiseTimer.Stopper(timer)
    promise.onCancel = { withExtendedLifetime(stopper) {} }
    timer.startUnlessStopped(duration)
    return promise
  }
}

/// A timer for a promise; settling the promise cancels it.
///
/// The closure is released when the timer has fired or was cancelled. Settling releases `onCancel`, which holds the
/// only reference to the stopper, whose deinit cancels the timer. So the end of a promise needs no other hook.
private final class PromiseTimer: TimerCall, @unchecked Sendable {
  // Sound because the closure is under the lock.
  // Not shared: what fires and what stops settles the promise, which tells.
  private let lock = ThreadLock()
  @exclusivity(unchecked) private var body: (() -> Void)?

  init(_ body: @escaping () -> Void) {
    self.body = body
    super.init()
  }

  override func fire() { lock.withLock { body.take() }?() }

  /// Starts the timer, unless it has been cancelled.
  func startUnlessStopped(_ duration: Duration) { lock.withLock { if body != nil { start(duration) } } }

  func cancel() {
    _ = lock.withLock {
      stop()
      return body.take()
    }
  }

  final class Stopper: Sendable {
    private let timer: PromiseTimer
    init(_ timer: PromiseTimer) { self.timer = timer }
    deinit { timer.cancel() }
  }
}

extension Promise {
  /// Returns a promise for the value, fulfilled `duration` after this one; a failure is passed on at once.
  public final func delay(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    then(file: file, line: line) { value throws -> Promise in
      Promise<Void>.after(duration, file: file, line: line).then(file: file, line: line) { () throws -> Success in value
      }
    }
  }

  /// Returns a promise with the same outcome, or ``TimeoutError`` if there is no outcome after `duration`.
  ///
  /// The work is then cancelled, unless it has other waiters. A timeout is a failure, not a cancellation. If `duration`
  /// is zero or less, it rejects at once.
  public final func timeout(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    let timed = Promise(file: file, line: line)
    // Weak: the timer must not keep an abandoned promise until its deadline.
    let site = LaunchSite(file: file, line: line)
    let timer = PromiseTimer { [weak timed] in
      if timed?.cancel(with: TimeoutError(after: duration, at: site)) == true { PassedDeadlines.note(site, duration) }
    }
    let stopper = PromiseTimer.Stopper(timer)
    timed.onCancel = { withExtendedLifetime(stopper) {} }
    timed.link(to: self, on: nil, [], Self.copier)
    if duration > .zero {
      timer.startUnlessStopped(duration)
    } else {
      _ = timed.cancel(with: TimeoutError.passed(after: duration, at: site))
    }
    return timed
  }
}

// MARK: - Retrying

extension Promise {
  /// Calls `body` until its promise is fulfilled or the attempts are used up, and returns a promise for the value.
  ///
  /// - Parameters:
  ///   - attempts: The number of attempts in all. If it is less than one, `body` never runs, and the promise rejects
  ///     with ``CoroutineError/invalidCount``.
  ///   - delay: The pauses between attempts. The default is no pause.
  ///   - shouldRetry: Whether to try again after this failure. The default is true for every failure but a
  ///     cancellation.
  ///   - queue: The queue on which `body` runs from the second attempt on, in a coroutine. Without a queue, that of the
  ///     calling coroutine or handler. The first attempt runs at once, on the caller.
  ///   - file: The launch site of the promise, for reports.
  ///   - line: The launch site of the promise, for reports.
  ///   - body: Makes an attempt. It gets the number of the attempt, from one on.
  ///
  /// The promise rejects with the last failure. Cancelling it cancels the current attempt or pause. A cycle of promises
  /// that leads through an attempt is not found: an attempt that waits for the promise of the retry waits for ever. A
  /// dump shows the coroutine.
  public static func retry(
    attempts: Int,
    delay: Backoff = .none,
    while shouldRetry: @escaping @Sendable (any Error) -> Bool = { !($0 is CancellationError) },
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (_ attempt: Int) throws -> Promise
  ) -> Promise {
    guard attempts > 0 else {
      return .failure(CoroutineError.invalidCount(attempts, of: "the number of attempts"), file: file, line: line)
    }
    let result = Promise(file: file, line: line)
    let run = Run(result)
    let first = run.step(of: Promise.trying { () throws -> Promise in try body(1) })
    if first.isFulfilled { return first }
    run.start(result, on: queue, name: "Promise.retry") {
      var (number, attempt) = (1, first)
      while true {
        do { return try co_await(attempt) } catch {
          guard number < attempts, run.mayGoOn(result), !co_isCancelled, shouldRetry(error) else { throw error }
        }
        let pause = delay.pause(after: number)
        if pause > .zero { try co_await(run.step(of: Promise<Void>.after(pause))) }
        if !run.mayGoOn(result) { throw CancellationError() }
        number += 1
        let next = number
        attempt = run.step(of: Promise.trying { () throws -> Promise in try body(next) })
      }
    }
    return result
  }
}

// MARK: - Back-off

/// The pauses between the attempts of a retry.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/RecipeSnippets.swift -->
/// ```swift
/// let backoff = Backoff.exponential(from: .milliseconds(100), limit: .seconds(10))
/// var failed = 0
/// while true {
///   do {
///     return try body()
///   } catch {
///     failed += 1
///     if failed >= attempts { throw error }
///     try co_delay(backoff.pause(after: failed))
///   }
/// }
/// ```
public struct Backoff: Sendable {
  private let pauses: @Sendable (Int) -> Duration

  /// Creates a back-off from a closure.
  ///
  /// `pause` gets the number of the failed attempt, from one on, and returns the pause after it.
  public init(_ pause: @escaping @Sendable (_ failedAttempt: Int) -> Duration) { pauses = pause }

  /// No pause.
  public static var none: Backoff { Backoff { _ in .zero } }

  /// The same pause after each attempt.
  public static func constant(_ pause: Duration) -> Backoff { Backoff { _ in pause } }

  /// A pause that grows from `first` by `factor` after each attempt, up to `limit`.
  ///
  /// The actual pause is a random part of it, between half and all, so that clients that failed together do not retry
  /// together. A factor below 1 shortens the pause. A negative one counts as 0, and one that is not a number as
  /// infinity. Negative durations count as zero, and durations beyond 292 years as 292 years.
  public static func exponential(
    from first: Duration,
    factor: Double = 2,
    limit: Duration = .seconds(30)
  ) -> Backoff {
    let (first, limit) = (max(0, first.nanoseconds), max(0, limit.nanoseconds))
    let factor = factor.isNaN ? .infinity : max(0, factor)
    return Backoff { attempt in
      // Not infinity times zero.
      let pause = first == 0 ? 0 : Double(first) * power(factor, max(1, attempt) - 1)
      let part = (min(pause, Double(limit)) * (0.5 + Carrier.drawFraction() / 2)).rounded(.up)
      return .nanoseconds(min(Int64(exactly: part) ?? .max, limit))
    }
  }

  /// Returns `factor` to the power of `exponent`, by squaring: unlike `pow`, it is the same on every processor.
  ///
  /// `factor` is not negative. A result beyond every duration counts as zero or infinity, so no number is denormal.
  private static func power(_ factor: Double, _ exponent: Int) -> Double {
    var (result, square, rest) = (1.0, factor, exponent)
    while rest > 0 {
      guard (1e-100...1e100).contains(square) else { return factor < 1 ? 0 : .infinity }
      if rest & 1 == 1 { result *= square }
      square *= square
      rest >>= 1
    }
    return result
  }

  /// Returns the pause after the failed attempt of this number, from one on.
  public func pause(after failedAttempt: Int) -> Duration { pauses(failedAttempt) }
}
