import Glibc

// The texts of errors: the subject first, then what to do about it, in one sentence without a full stop.

extension CoroutineError: CustomStringConvertible {
  /// What is wrong and what to do about it, in one sentence.
  public var description: String {
    switch cause {
    case .notInCoroutine:
      "this call suspends a coroutine, and there is none here; call it inside co_launch { … }, or block with Job.blockingWait()"
    case .insideTask:
      "this call suspends a coroutine inside of Task.immediate, and in this process the thread's current Task cannot be "
        + "taken along; wait before or after the Task, or link Swift's libraries dynamically"
    case .abandoned:
      "what was waited for can no longer happen: it was released without having been settled or resumed"
    case .invalidCallback:
      "the callback was called with neither a value nor an error; give one of them"
    case .wouldDeadlock:
      "waiting here could never end: \(reason.asLine)"
    case .cycle:
      "these wait for one another in a circle; break it by waiting for something outside of it"
    case .alreadyRunning:
      "the generator is running already; step it from outside of its body and from one place at a time"
    case .yieldInsideScope:
      "a generator yielded inside a co_timeout, co_shield, co_pinned, co_isolated or scope of its own body; put only the wait "
        + "inside it, and yield after it has returned"
    case .badDescriptor:
      "the file descriptor is not open; keep it open for as long as a coroutine waits for it"
    case .cannotWatch:
      refusalToWatch
    case .stackTooLarge:
      "a stack\(hasNumber ? " of \(number) bytes" : "") is beyond the largest size class of 16 MiB; ask for less, or "
        + "recurse less deeply"
    case .outOfStacks:
      reason.isEmpty ? "there is no stack for a coroutine; let fewer coroutines live at once" : reason.asLine
    case .invalidCount:
      hasNumber ? "the count is \(number), and must be at least one" : "a count must be at least one"
    case .tooManyCases:
      "a select takes at most 240 cases\(hasNumber ? ", not \(number)" : ""); let many send into one channel"
    case .cannotPin:
      "a coroutine keeps its thread in co_pinned only where the runtime owns the thread, and does not move to a queue "
        + "inside of it; launch it without a queue, and call co_switch before or after co_pinned"
    }
  }

  private var refusalToWatch: String {
    let what = "the kernel refused to watch a descriptor"
    guard hasNumber else { return what }
    let code = Int32(truncatingIfNeeded: number)
    return switch code {
    case ENOSPC: "\(what): this user watches as many as it may; raise the sysctl fs.epoll.max_user_watches"
    case EMFILE: "\(what): the process has no descriptor left for that; raise RLIMIT_NOFILE (ulimit -n)"
    case ENFILE: "\(what): the system has no descriptor left for that; raise the sysctl fs.file-max"
    case ENOMEM: "\(what): it is out of memory; wait for fewer descriptors at once"
    default: "\(what): \(String(cString: strerror(code))) (error \(code))"
    }
  }

  /// The reason why a wait could never end.
  ///
  /// Its text gives the violated rule and what to do instead.
  public struct Deadlock: Sendable, Hashable, CustomStringConvertible {
    /// The rule, and what to do instead.
    public let description: String
    /// Creates a custom reason, for an ``Awaitable`` or a lock of your own.
    public init(_ description: String) { self.description = description }
  }
}

extension CoroutineError.Deadlock {
  static let unspecified = Self("it waits for something that waits for it")
  static let joinsItself = Self("a coroutine cannot join itself; let another one join it")
  static let blocksCoroutine = Self(
    "blockingWait() blocks the thread, which coroutines and handlers need; use join() or co_await(), in a coroutine"
  )
  static let blocksOwnQueue = Self(
    "blockingWait() blocks the queue that the job needs; call it on another queue or thread"
  )
  static let blocksHandler = Self(
    "blockingWait() blocks the queue that a handler of the promise needs; call it on another queue or thread"
  )
  @usableFromInline static let asksItself = Self(
    "an actor that asks itself waits for an answer that only it can give; call the handler's code instead"
  )
  static let tellsItself = Self(
    "the actor's mailbox is full, and only the actor that tells here can empty it; give it a larger mailbox"
  )
  static let holdsMutex = Self(
    "the coroutine, or a generator that it steps or runs in, holds this FairMutex already; unlock it first"
  )
  static let runsOnce = Self(
    "the coroutine, or a generator that it steps or runs in, runs this Once already; return from that body first"
  )
  static let holdsWriteLock = Self(
    "the coroutine, or a generator that it steps or runs in, holds this FairReadWriteLock for writing already; unlock it "
      + "first"
  )

  static func permits(_ count: UInt, limit: UInt) -> Self {
    Self("\(count) permits were asked of a FairSemaphore that never has more than \(limit); ask for less")
  }

  static func tokens(_ count: Int, burst: Int) -> Self {
    Self("\(count) tokens were asked of a RateLimiter whose burst is \(burst); ask for less")
  }
}

extension DefaultStringInterpolation {
  /// Makes `"\(CoroutineError.wouldDeadlock)"` print the error, and not the function that makes one from a reason.
  public mutating func appendInterpolation(_ error: CoroutineError) { appendInterpolation(error as any Error) }
}

extension TimeoutError: CustomStringConvertible {
  /// The deadline that has passed.
  public var description: String {
    duration.map { "the deadline of \($0) has passed" } ?? "the deadline has passed"
  }
}

extension ChannelClosedError: CustomStringConvertible {
  /// That the channel is closed, and the cause.
  public var description: String {
    cause.map { "the channel is closed; it was closed with the error: \(asLine($0))" } ?? "the channel is closed"
  }
}

extension GeneratorClosedError: CustomStringConvertible {
  /// The reason for the end of the generator.
  public var description: String { "the generator was closed or released before its body had ended" }
}

extension ActorStoppedError: CustomStringConvertible {
  /// That the actor has stopped.
  public var description: String { "the actor has stopped; it takes no more messages and answers no more questions" }
}

extension AggregateError: CustomStringConvertible {
  /// The number of failures, and every failure.
  public var description: String {
    switch errors.count {
    case 0: "nothing has succeeded, because there was nothing to wait for"
    case 1: "the only one to wait for has failed: \(asLine(errors[0]))"
    case let count:
      "all \(count) have failed: "
        + errors.enumerated().map { "(\($0 + 1)) \(asLine($1))" }.joined(separator: ", ")
    }
  }
}

extension ResumerUsedTwiceError: CustomStringConvertible {
  /// That the late result is ignored.
  public var description: String {
    "a resumer was used although its coroutine had been resumed by it before; the late result, \(asLine(late)), is ignored"
  }
}
