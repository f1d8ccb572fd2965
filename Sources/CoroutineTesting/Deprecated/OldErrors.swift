// Old spellings of errors. Each stays for one release, so that programs still compile.

/// The old name of ``World/DeadlockError``.
@available(*, deprecated, renamed: "World.DeadlockError")
public typealias Deadlock = World.DeadlockError

/// The old name of ``World/LeftRunningError``.
@available(*, deprecated, renamed: "World.LeftRunningError")
public typealias LeftRunning = World.LeftRunningError

/// The old name of ``World/TimeLimitError``.
@available(*, deprecated, renamed: "World.TimeLimitError")
public typealias TimeLimitReached = World.TimeLimitError

/// The old name of ``World/RealWaitError``.
@available(*, deprecated, renamed: "World.RealWaitError")
public typealias RealWait = World.RealWaitError

/// The old name of ``World/UnknownHostError``.
@available(*, deprecated, renamed: "World.UnknownHostError")
public typealias UnknownHost = World.UnknownHostError

/// The old name of ``Exploration/NondeterminismError``.
@available(*, deprecated, renamed: "Exploration.NondeterminismError")
public typealias Nondeterminism = Exploration.NondeterminismError

/// The old name of ``Exploration/TokenError``.
@available(*, deprecated, renamed: "Exploration.TokenError")
public typealias UnreadableToken = Exploration.TokenError

extension Exploration {
  /// The old name of ``RunError``.
  @available(*, deprecated, renamed: "RunError")
  public typealias Failure = RunError
}
