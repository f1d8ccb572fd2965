// Old spellings of error types. Each stays for one release, so that programs still compile.

/// The old name of ``ChannelClosedError``.
@available(*, deprecated, renamed: "ChannelClosedError")
public typealias ChannelClosed = ChannelClosedError

/// The old name of ``GeneratorClosedError``.
@available(*, deprecated, renamed: "GeneratorClosedError")
public typealias GeneratorClosed = GeneratorClosedError

/// The old name of ``ActorStoppedError``.
@available(*, deprecated, renamed: "ActorStoppedError")
public typealias ActorStopped = ActorStoppedError

/// The old name of ``MailboxFullError``.
@available(*, deprecated, renamed: "MailboxFullError")
public typealias MailboxFull = MailboxFullError

/// The old name of ``MailboxStashFullError``.
@available(*, deprecated, renamed: "MailboxStashFullError")
public typealias StashFull = MailboxStashFullError

/// The old name of ``ResumerUsedTwiceError``.
@available(*, deprecated, renamed: "ResumerUsedTwiceError")
public typealias ResumedTwice = ResumerUsedTwiceError

/// The old name of ``ReplyUsedTwiceError``.
@available(*, deprecated, renamed: "ReplyUsedTwiceError")
public typealias AnsweredTwice = ReplyUsedTwiceError

/// The old name of ``PromiseMemberError``.
@available(*, deprecated, renamed: "PromiseMemberError")
public typealias MemberFailed<Key: Hashable & Sendable> = PromiseMemberError<Key>

/// The old name of ``PromiseValidationError``.
@available(*, deprecated, renamed: "PromiseValidationError")
public typealias ValidationFailed = PromiseValidationError

/// The old name of ``PromiseValueMissingError``.
@available(*, deprecated, renamed: "PromiseValueMissingError")
public typealias ValueMissing = PromiseValueMissingError

/// The old name of ``ErrnoError``.
@available(*, deprecated, renamed: "ErrnoError")
public typealias ErrorNumber = ErrnoError

/// The old name of ``ActorRegistry/NameTakenError``.
@available(*, deprecated, renamed: "ActorRegistry.NameTakenError")
public typealias ActorNameTaken = ActorRegistry.NameTakenError

/// The old name of ``ActorMonitor/LinkedActorError``.
@available(*, deprecated, renamed: "ActorMonitor.LinkedActorError")
public typealias LinkedActorEnded = ActorMonitor.LinkedActorError

/// The old name of ``Supervisor/RestartLimitError``.
@available(*, deprecated, renamed: "Supervisor.RestartLimitError")
public typealias RestartLimitReached = Supervisor.RestartLimitError

// These names were types of their own. In a `catch is`, each matches every CoroutineError now.

/// The old name of ``CoroutineError/blockingThreadEnded``.
@available(*, deprecated, message: "catch CoroutineError.blockingThreadEnded")
public typealias BlockingThreadEnded = CoroutineError

/// The old name of ``CoroutineError/cannotWatch(_:)``.
@available(*, deprecated, message: "catch CoroutineError.cannotWatch")
public typealias DescriptorWaitFailed = CoroutineError

/// The old name of ``CoroutineError/invalidCount(_:)``.
@available(*, deprecated, message: "catch CoroutineError.invalidCount")
public typealias InvalidCount = CoroutineError

/// The old name of ``CoroutineError/yieldInsideScope``.
@available(*, deprecated, message: "catch CoroutineError.yieldInsideScope")
public typealias YieldInsideScope = CoroutineError

extension CoroutineError {
  /// The old name of ``number`` in `DescriptorWaitFailed`.
  @available(*, deprecated, renamed: "number")
  public var code: Int32 { Int32(truncatingIfNeeded: number) }

  /// The old name of ``number`` in `InvalidCount`.
  @available(*, deprecated, renamed: "number")
  public var count: Int { number }

  /// The old form of ``cannotWatch(_:)``.
  ///
  /// - Parameter code: The system's error number.
  @available(*, deprecated, message: "write CoroutineError.cannotWatch(code)")
  public init(code: Int32) { self = .cannotWatch(code) }

  /// The old form of ``invalidCount(_:)``.
  ///
  /// - Parameter count: The count.
  @available(*, deprecated, message: "write CoroutineError.invalidCount(count)")
  public init(count: Int) { self = .invalidCount(count) }
}
