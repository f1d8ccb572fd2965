internal import CCoroutineRuntime
internal import CLinux
import Glibc

/// A deadline has passed.
///
/// This is not a cancellation: the code that catches it continues.
public struct TimeoutError: Error {
  /// The duration of the deadline; nil if it was not given.
  public var duration: Duration?
  /// The place of the call whose deadline has passed.
  private let launchSite: LaunchSite?

  /// Creates the error.
  public init() { launchSite = nil }
  /// Creates the error of a deadline of `duration`.
  public init(after duration: Duration) { self.init(after: duration, at: nil) }

  init(after duration: Duration, at site: LaunchSite?) {
    self.duration = duration
    launchSite = site
  }

  /// The place of the call whose deadline has passed, as `file:line`; nil if it is not known.
  public var site: String? { launchSite?.description }
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
  /// The violated rule of ``wouldDeadlock``, the exhausted limit of ``outOfStacks``, or what ``invalidCount`` counts;
  /// empty for other causes.
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
  /// A count, ``number``, is below one; `name` says of what.
  package static func invalidCount(_ count: Int, of name: String = "") -> CoroutineError {
    CoroutineError(.invalidCount, number: count, reason: name)
  }
  /// A select has more cases than the 240 that it may have; as a pattern, it matches every count.
  public static var tooManyCases: CoroutineError { CoroutineError(.tooManyCases) }
  /// A select has ``number`` cases, and may have 240.
  package static func tooManyCases(_ count: Int) -> CoroutineError { CoroutineError(.tooManyCases, number: count) }

  /// ``co_pinned(_:)`` was called where the runtime owns no thread, as on a dispatch queue, or the coroutine would have
  /// to leave its thread inside of it.
  public static var cannotPin: CoroutineError { CoroutineError(.cannotPin) }
}

// MARK: - Texts

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
      hasNumber
        ? "\(reason.isEmpty ? "the count" : reason) is \(number), and must be at least one"
        : "a count must be at least one"
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
  static let fliesItself = Self(
    "the body of this key asks the same SingleFlight for the same key; call the body's code instead, or use another key"
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
    let call = site.map { " at \($0)" } ?? ""
    // A negative one is that of an instant that had passed before.
    guard let duration, duration >= .zero else { return "the deadline\(call) has passed" }
    return "the deadline of \(duration)\(call) has passed"
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

// MARK: - Errors that nothing has seen

extension CoroutineRuntime {
  /// A failure that no code observes, as ``CoroutineRuntime/unhandledErrorHandler`` receives it.
  public struct UnhandledError: Sendable, CustomStringConvertible {
    /// The failure.
    public let error: any Error
    /// The name of the coroutine or the actor; nil if it has none, and for promises and generators.
    public let name: String?
    /// The file and the line of the launch or the creation; nil if they are not known.
    public let launchSite: String?
    /// What has failed: `"name" (id 7, launched at Module/File.swift:12)` of a coroutine, `a promise (created at …)`.
    ///
    /// Texts of users are escaped in it.
    public let origin: String

    /// Creates a failure, as a test of a handler needs one.
    ///
    /// - Parameters:
    ///   - error: The failure.
    ///   - name: The name of the coroutine or the actor.
    ///   - launchSite: The file and the line of the launch or the creation.
    ///   - origin: What has failed, as the runtime says it.
    public init(error: any Error, name: String? = nil, launchSite: String? = nil, origin: String) {
      self.error = error
      self.name = name
      self.launchSite = launchSite
      self.origin = origin
    }

    /// A line for a log: the origin and the failure.
    public var description: String { "unhandled error in \(origin.asLine): \(asLine(error))" }
  }
}

extension CoroutineRuntime.UnhandledError {
  init(_ error: any Error, in job: JobOrigin) {
    self.init(error: error, name: job.name?.text, launchSite: job.launchSite.description, origin: job.summary)
  }

  init(_ error: any Error, in origin: String, at launchSite: LaunchSite? = nil) {
    self.init(error: error, launchSite: launchSite?.description, origin: origin)
  }
}

/// The destination of unobserved failures: the handler behind ``CoroutineRuntime/unhandledErrorHandler``.
enum UnhandledErrors {
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var stored: @Sendable (CoroutineRuntime.UnhandledError) -> Void = writeLine
  private static let lock = SpinLock()

  static var handler: @Sendable (CoroutineRuntime.UnhandledError) -> Void {
    get {
      lock.lock()
      defer { lock.unlock() }
      return stored
    }
    set {
      lock.lock()
      let old = stored
      stored = newValue
      lock.unlock()
      // The old handler is released after the lock is left, because that may run foreign code.
      _ = consume old
    }
  }

  static func report(_ unhandled: CoroutineRuntime.UnhandledError) {
    if Host.takesUnhandled(unhandled) { return }
    handler(unhandled)
  }

  @Sendable private static func writeLine(_ unhandled: CoroutineRuntime.UnhandledError) {
    writeToStandardError("Coroutine: \(unhandled)\n")
  }
}

/// Writes a text, usually in one write, so that lines of several threads do not mix.
///
/// If the descriptor is closed, or is full and does not block, the rest is left out. Where the thread `mayWait`, it
/// waits for a reader that goes on reading: a terminal or a pipe may have been made non-blocking by another process.
func writeToStandardError(_ text: String, mayWait: Bool = false) {
  var text = text
  text.withUTF8 { bytes in
    var rest = bytes[...]
    while !rest.isEmpty {
      let count = clinux_write_error(UnsafeBufferPointer(rebasing: rest).baseAddress, rest.count)
      switch count {
      case 0...: rest = rest.dropFirst(Int(count))
      case -Int64(EINTR): break
      case -Int64(EAGAIN): guard mayWait, clinux_error_has_room(60_000) else { return }
      default: return
      }
    }
  }
}

extension AnyJob {
  /// The name, number and launch site: `"name" (id 7, launched at Module/File.swift:12)`.
  final var summary: String { origin.summary }

  final func report(_ error: any Error) { UnhandledErrors.report(.init(error, in: origin)) }
}

extension LaunchSite: CustomStringConvertible {
  @usableFromInline var description: String {
    "\(String(decoding: UnsafeBufferPointer(start: file, count: Int(length)), as: UTF8.self).asWord):\(line)"
  }
}
