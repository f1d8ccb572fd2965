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
public struct ChannelClosed: Error {
  /// The error that the channel was closed with.
  public var cause: (any Error)?
  /// Creates the error.
  public init(cause: (any Error)? = nil) { self.cause = cause }
}

/// A generator was closed or released while its body was at a yield.
public struct GeneratorClosed: Error {
  /// Creates the error.
  public init() {}
}

/// An actor has stopped: it accepts no more messages and answers no more questions.
public struct ActorStopped: Error {
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
public struct ResumedTwice: Error {
  /// The result of the late use.
  public var late: any Sendable
  /// Creates the error.
  public init(late: any Sendable) { self.late = late }
}

/// An error of the runtime itself.
public enum CoroutineError: Error {
  /// A function that waits was called outside a coroutine.
  case notInCoroutine
  /// A coroutine would have to wait inside the synchronous part of a `Task.immediate`, and in this process it cannot
  /// take the thread's current Task along, because Swift's concurrency library is linked statically or unknown.
  case insideTask
  /// The awaited event can no longer happen: the resumer, or the last owner, was released.
  case abandoned
  /// A callback gave neither a value nor an error.
  case invalidCallback
  /// The wait could never end; the reason says why.
  ///
  /// `catch CoroutineError.wouldDeadlock` and `case .wouldDeadlock` match it for every reason
  /// (docs/evolution/0011-a-deadlock-says-why.md).
  case wouldDeadlock(because: Deadlock)
  /// Several operations wait for each other in a cycle.
  case cycle
  /// A generator was stepped while it was running.
  case alreadyRunning
  /// The file descriptor is not open.
  case badDescriptor
  /// The requested stack, in bytes, exceeds the largest size class of 16 MiB.
  case stackTooLarge(Int)
  /// No stack was available; the text gives the limit and the way to raise it.
  case outOfStacks(String)
  /// A thread of ``co_blocking(_:)`` was about to block in ``Job/blockingWait()`` or ``Promise/blockingWait()``, and as
  /// many threads as may do so at once already did; the number is that limit.
  case tooManyBlockedThreads(Int)
  /// ``co_pinned(_:)`` was called where the runtime owns no thread, as on a dispatch queue, or the coroutine would have
  /// to leave its thread inside of it.
  case cannotPin
  /// This process was forked after its parent had used the runtime, and has none of the threads that run coroutines.
  ///
  /// A child that is forked before the first launch, handler, executor or signal (``co_signals(_:)``,
  /// ``CoroutineRuntime/dumpOnSignal()``) may launch. If the parent had used Dispatch or Tasks, and no coroutines,
  /// launches on queues throw this error, and launches on the worker pool run.
  case afterFork

  /// The wait could never end, for an unspecified reason.
  public static var wouldDeadlock: CoroutineError { .wouldDeadlock(because: .unspecified) }
}
