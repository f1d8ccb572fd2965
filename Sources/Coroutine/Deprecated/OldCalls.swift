public import Dispatch

// Old spellings of calls. Each stays for one release, so that programs still compile; docs/migration.md lists all.

extension Job {
  /// The old name of ``blockingWait()``.
  @discardableResult
  @available(*, deprecated, renamed: "blockingWait()")
  @available(*, noasync, message: "await `value`")
  public func wait() throws -> Success { try blockingWait() }
}

extension Promise {
  /// The old name of ``blockingWait()``.
  @discardableResult
  @available(*, deprecated, renamed: "blockingWait()")
  @available(*, noasync, message: "await `value`")
  public final func wait() throws -> Success { try blockingWait() }
}

extension WaitGroup {
  /// The old name of ``wait()``.
  @available(*, deprecated, renamed: "wait()")
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func join() throws { try wait() }
}

extension Awaitable {
  /// Suspends until the result is known: what ``co_await(_:)-(Awaitable)`` does.
  @available(*, deprecated, message: "call co_await(_:)")
  @available(*, noasync, message: "await `value`")
  public func awaitValue() throws -> Output { try _awaitValue() }
}

/// The old name of ``co_untilReadable(_:assumingNotReady:)``.
@available(*, deprecated, renamed: "co_untilReadable(_:assumingNotReady:)")
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_wait(readable fd: Int32, afterEAGAIN: Bool = false) throws {
  try co_untilReadable(fd, assumingNotReady: afterEAGAIN)
}

/// The old name of ``co_untilWritable(_:assumingNotReady:)``.
@available(*, deprecated, renamed: "co_untilWritable(_:assumingNotReady:)")
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_wait(writable fd: Int32, afterEAGAIN: Bool = false) throws {
  try co_untilWritable(fd, assumingNotReady: afterEAGAIN)
}

/// A scope whose failures are isolated: ``co_scope(failures:_:)``.
@discardableResult
@available(*, deprecated, message: "write co_scope(failures: .isolated)")
@available(*, noasync, message: "use `withTaskGroup`, or await the `value` of a coroutine that does this")
public func co_supervise<Output>(_ body: (Scope) throws -> Output) throws -> Output {
  try co_scope(failures: .isolated, body)
}

extension Mailbox {
  /// The old form of ``schedule(_:after:)``.
  @discardableResult
  @available(*, deprecated, renamed: "schedule(_:after:)")
  public func schedule(after delay: Duration, _ message: sending Message) -> ActorTimer {
    schedule(message, after: delay)
  }

  /// The old form of ``schedule(_:every:)``.
  @discardableResult
  @available(*, deprecated, renamed: "schedule(_:every:)")
  public func schedule(every interval: Duration, _ message: Message) -> ActorTimer where Message: Sendable {
    schedule(message, every: interval)
  }
}

extension CoroutineRuntime {
  /// The old form of ``unhandledErrorHandler``: the handler gets the ``UnhandledError/origin`` alone.
  @available(*, deprecated, message: "use unhandledErrorHandler, which receives a CoroutineRuntime.UnhandledError")
  public static var onUnhandledError: @Sendable (any Error, _ job: String) -> Void {
    get {
      let handler = unhandledErrorHandler
      return { handler(UnhandledError($0, in: $1)) }
    }
    set { unhandledErrorHandler = { newValue($0.error, $0.origin) } }
  }
}

extension ActorGroup {
  /// The current number of members.
  @available(*, deprecated, message: "write members.count")
  public var count: Int { members.count }
}

extension Guarantee {
  /// Returns a promise for the result of `body`, which gets the value.
  @available(*, deprecated, message: "write promise.then")
  public func thenTry<U: Sendable>(
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Success) throws -> U
  ) -> Promise<U> {
    promise.then(on: queue, file: file, line: line, body)
  }

  /// Returns a promise for the value, which rejects with ``TimeoutError`` if there is no value after `duration`.
  @available(*, deprecated, message: "write promise.timeout")
  public func timeout(_ duration: Duration, file: StaticString = #fileID, line: UInt = #line) -> Promise<Success> {
    promise.timeout(duration, file: file, line: line)
  }
}
