/// A deadline has passed.
///
/// This is not a cancellation: the code that catches it continues.
public struct TimeoutError: Error {
  /// The duration of the deadline; nil if it was not given.
  public var duration: Duration?
  /// Creates the error.
  public init() {}
  /// Creates the error of a deadline of `duration`.
  public init(after duration: Duration) { self.duration = duration }
}

/// A channel was closed; `cause` is the error that it was closed with.
public struct ChannelClosedError: Error {
  /// The error that the channel was closed with.
  public var cause: (any Error)?
  /// Creates the error.
  public init(cause: (any Error)? = nil) { self.cause = cause }
}

/// A generator was closed or released while its body was at a yield.
public struct GeneratorClosedError: Error {
  /// Creates the error.
  public init() {}
}

/// An actor has stopped: it accepts no more messages and answers no more questions.
public struct ActorStoppedError: Error {
  /// Creates the error.
  public init() {}
}

/// All of several operations failed; empty if there were none.
public struct AggregateError: Error {
  /// The failures, in the order of the input.
  public var errors: [any Error] = []
  /// Creates the error.
  public init(errors: [any Error] = []) { self.errors = errors }
}

/// A resumer was used again after it had resumed its coroutine; reported to ``CoroutineRuntime/unhandledErrorHandler``.
public struct ResumerUsedTwiceError: Error {
  /// The result of the late use.
  public var late: any Sendable
  /// Creates the error.
  public init(late: any Sendable) { self.late = late }
}

/// An error of the runtime itself: a misuse, or a limit.
///
/// Two errors are equal if they have the same cause. ``number``, ``reason`` and ``description`` describe it. A pattern
/// matches errors of any type by the same rule: `catch CoroutineError.wouldDeadlock` catches it for every reason.
///
/// A later version may have more causes, so a `switch` over them needs a `default`.
public struct CoroutineError: Error, Equatable {
  enum Cause: UInt8, Sendable {
    case notInCoroutine, insideTask, abandoned, invalidCallback, wouldDeadlock, cycle, alreadyRunning, yieldInsideScope
    case badDescriptor, cannotWatch, stackTooLarge, outOfStacks
    case invalidCount, cannotPin, tooManyCases
  }

  /// The number that the cause is about: the bytes of a stack, a limit, a count, an error number; 0 if there is none.
  public let number: Int
  /// The violated rule of ``wouldDeadlock``, or the exhausted limit of ``outOfStacks``; empty for other causes.
  public let reason: String
  let cause: Cause
  /// Whether a number was given; without one, as in a pattern, the text leaves the number out.
  let hasNumber: Bool

  init(_ cause: Cause, number: Int? = nil, reason: String = "") {
    self.cause = cause
    self.hasNumber = number != nil
    self.number = number ?? 0
    self.reason = reason
  }

  /// Whether both errors have the same cause.
  public static func == (one: CoroutineError, other: CoroutineError) -> Bool { one.cause == other.cause }

  /// Matches a caught error: `catch CoroutineError.abandoned`.
  public static func ~= (pattern: CoroutineError, error: any Error) -> Bool { error as? CoroutineError == pattern }
}

extension CoroutineError {
  /// A function that waits was called outside a coroutine.
  public static var notInCoroutine: CoroutineError { CoroutineError(.notInCoroutine) }
  /// A coroutine would have to wait inside the synchronous part of a `Task.immediate`, and in this process it cannot
  /// take the thread's current Task along, because Swift's concurrency library is linked statically or unknown.
  public static var insideTask: CoroutineError { CoroutineError(.insideTask) }
  /// The awaited event can no longer happen: the resumer, or the last owner, was released.
  public static var abandoned: CoroutineError { CoroutineError(.abandoned) }
  /// A callback gave neither a value nor an error.
  public static var invalidCallback: CoroutineError { CoroutineError(.invalidCallback) }

  /// The wait could never end, for an unspecified reason; as a pattern, it matches every reason
  /// (docs/evolution/0011-a-deadlock-says-why.md).
  public static var wouldDeadlock: CoroutineError { .wouldDeadlock(because: .unspecified) }
  /// The wait could never end; ``reason`` says why.
  public static func wouldDeadlock(because reason: Deadlock) -> CoroutineError {
    CoroutineError(.wouldDeadlock, reason: reason.description)
  }
  /// Several operations wait for each other in a cycle.
  public static var cycle: CoroutineError { CoroutineError(.cycle) }

  /// A generator was stepped while it was running.
  public static var alreadyRunning: CoroutineError { CoroutineError(.alreadyRunning) }
  /// A generator yielded inside a deadline, shield, scope, co_pinned or co_isolated that its body has entered itself.
  ///
  /// Or the body holds a FairMutex, a FairReadWriteLock for writing or a running Once.
  ///
  /// Each of these belongs to the coroutine that made this step: the deadline, the shield, the children of the scope,
  /// the thread of a co_pinned, the isolation of a co_isolated, the lock. Another coroutine may make the next step.
  ///
  /// A `co_isolated` on an actor whose executor is not a ``CoroutineExecutor``, and not the caller's own, runs its body
  /// on another stack: a yield there ends the process.
  public static var yieldInsideScope: CoroutineError { CoroutineError(.yieldInsideScope) }

  /// The file descriptor is not open.
  public static var badDescriptor: CoroutineError { CoroutineError(.badDescriptor) }
  /// The kernel refuses to watch a descriptor; as a pattern, it matches every error number.
  public static var cannotWatch: CoroutineError { CoroutineError(.cannotWatch) }
  /// The kernel refuses to watch a descriptor; ``number`` is the system's error number.
  package static func cannotWatch(_ code: Int32) -> CoroutineError { CoroutineError(.cannotWatch, number: Int(code)) }

  /// The requested stack exceeds the largest size class; as a pattern, it matches every size.
  public static var stackTooLarge: CoroutineError { CoroutineError(.stackTooLarge) }
  /// The requested stack, of ``number`` bytes, exceeds the largest size class of 16 MiB.
  public static func stackTooLarge(_ bytes: Int) -> CoroutineError { CoroutineError(.stackTooLarge, number: bytes) }
  /// No stack was available; as a pattern, it matches every limit.
  public static var outOfStacks: CoroutineError { CoroutineError(.outOfStacks) }
  /// No stack was available; ``reason`` gives the limit and the way to raise it.
  public static func outOfStacks(_ limit: String) -> CoroutineError { CoroutineError(.outOfStacks, reason: limit) }

  /// A count is below one; as a pattern, it matches every count.
  public static var invalidCount: CoroutineError { CoroutineError(.invalidCount) }
  /// A count, ``number``, is below one.
  package static func invalidCount(_ count: Int) -> CoroutineError { CoroutineError(.invalidCount, number: count) }
  /// A select has more cases than the 240 that it may have; as a pattern, it matches every count.
  public static var tooManyCases: CoroutineError { CoroutineError(.tooManyCases) }
  /// A select has ``number`` cases, and may have 240.
  package static func tooManyCases(_ count: Int) -> CoroutineError { CoroutineError(.tooManyCases, number: count) }

  /// ``co_pinned(_:)`` was called where the runtime owns no thread, as on a dispatch queue, or the coroutine would have
  /// to leave its thread inside of it.
  public static var cannotPin: CoroutineError { CoroutineError(.cannotPin) }
}
