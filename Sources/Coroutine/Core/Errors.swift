/// A deadline of ``co_timeout(_:_:)`` has passed.
///
/// Not a cancellation: whoever catches it goes on.
public struct TimeoutError: Error {
  /// Creates the error.
  public init() {}
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
  /// What was waited for can no longer happen: its resumer or its last holder is gone.
  case abandoned
  /// A callback gave neither a value nor an error.
  case invalidCallback
  /// Waiting here could never end: it would block what it waits for, or asks for more than there will ever be.
  case wouldDeadlock
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
}

extension CoroutineError: CustomStringConvertible {
  /// What went wrong and what to do about it, in one sentence.
  public var description: String {
    switch self {
    case .notInCoroutine:
      "this call suspends a coroutine, and there is none here; call it inside co_launch { … }, or block with Job.wait()"
    case .abandoned:
      "what was waited for can no longer happen: it was released without having been settled or resumed"
    case .invalidCallback:
      "the callback was called with neither a value nor an error; give one of them"
    case .wouldDeadlock:
      "waiting here could never end: it would block what it waits for, or asks for more than there will ever be; give back "
        + "first what is held, ask for less, in a coroutine use join() instead of wait(), elsewhere wait on another queue"
    case .cycle:
      "these wait for one another in a circle; break it by waiting for something outside of it"
    case .alreadyRunning:
      "the generator is running already; step it from outside of its body and from one place at a time"
    case .badDescriptor:
      "the file descriptor is not open; keep it open for as long as a coroutine waits for it"
    case .stackTooLarge(let bytes):
      "a stack of \(bytes) bytes is beyond the largest size class of 16 MiB; ask for less, or recurse less deeply"
    case .outOfStacks(let limit):
      limit
    case .afterFork:
      "this process is a forked child, and the threads that run coroutines stayed in its parent; call exec or _exit, or use "
        + "generators, which need no thread; launch coroutines in the parent"
    }
  }
}

extension TimeoutError: CustomStringConvertible {
  /// One sentence.
  public var description: String { "the deadline of a co_timeout has passed" }
}

extension ResumedTwice: CustomStringConvertible {
  /// One sentence.
  public var description: String {
    "a resumer was used although its coroutine had been resumed by it before; the late result, \(late), is ignored"
  }
}
