/// A deadline has passed.
///
/// Not a cancellation: the code that catches it continues.
public struct TimeoutError: Error {
  /// How long the deadline allowed; nil where the thrower did not say.
  public var duration: Duration?
  /// Creates the error.
  public init() {}
  /// Creates the error of a deadline that allowed `duration`.
  public init(after duration: Duration) { self.duration = duration }
}

/// A channel was closed; `cause` is what it was closed with.
public struct ChannelClosed: Error {
  /// What the channel was closed with.
  public var cause: (any Error)?
  /// Creates the error.
  public init(cause: (any Error)? = nil) { self.cause = cause }
}

/// A generator was closed or dropped while its body was at a yield.
public struct GeneratorClosed: Error {
  /// Creates the error.
  public init() {}
}

/// An actor has stopped: it takes no more messages and answers none.
public struct ActorStopped: Error {
  /// Creates the error.
  public init() {}
}

/// Everything failed, in the order of the input; empty when there was nothing to try.
public struct AggregateError: Error {
  /// The failures, in the order of the input.
  public var errors: [any Error] = []
  /// Creates the error.
  public init(errors: [any Error] = []) { self.errors = errors }
}

/// A resumer was used although its coroutine had been resumed by it before; goes to ``CoroutineRuntime/onUnhandledError``.
public struct ResumedTwice: Error {
  /// What the late use carried.
  public var late: any Sendable
  /// Creates the error.
  public init(late: any Sendable) { self.late = late }
}

/// What the runtime itself refuses, or finds broken.
public enum CoroutineError: Error {
  /// A waiting verb was called outside of any coroutine.
  case notInCoroutine
  /// A coroutine would have to wait inside of the synchronous part of a `Task.immediate`, where in this process it cannot
  /// take the thread's current Task along: Swift's concurrency library is linked statically, or unknown.
  case insideTask
  /// What was waited for can no longer happen: its resumer or its last holder is gone.
  case abandoned
  /// A callback gave neither a value nor an error.
  case invalidCallback
  /// Waiting here could never end; says why.
  ///
  /// `catch CoroutineError.wouldDeadlock` and `case .wouldDeadlock` match it whatever the reason
  /// (docs/evolution/0011-a-deadlock-says-why.md).
  case wouldDeadlock(because: Deadlock)
  /// Things wait for one another in a circle.
  case cycle
  /// A generator was stepped while it was running.
  case alreadyRunning
  /// The file descriptor is not open.
  case badDescriptor
  /// The stack asked for, in bytes, is beyond the largest size class of 16 MiB.
  case stackTooLarge(Int)
  /// No stack could be had; says which limit was met and how to raise it.
  case outOfStacks(String)
  /// This process is a forked child, which has none of the threads that run coroutines.
  case afterFork

  /// Waiting would never end, for a reason that is not given.
  public static var wouldDeadlock: CoroutineError { .wouldDeadlock(because: .unspecified) }
}
