/// The result of an exploration.
public struct Exploration: Sendable {
  /// The number of schedules tried, without the runs that shrink and describe a failure.
  public var runs: Int
  /// Whether every schedule was tried: the strategy is `exhaustive`, no schedule failed, and `most` sufficed.
  public var isComplete: Bool
  /// The first failure, shrunk.
  public var failure: RunError?

  /// A failing run.
  public struct RunError: Error, CustomStringConvertible, Sendable {
    /// The error that the body threw, or the world's own.
    ///
    /// The world's own errors are ``World/DeadlockError``, ``World/LeftRunningError``, ``World/RealWaitError``,
    /// ``World/TimeLimitError``, ``World/UnhandledError``, ``World/UnknownHostError`` and
    /// ``Exploration/NondeterminismError``; a token that cannot be read, or does not fit the program, gives
    /// ``Exploration/TokenError``.
    public var error: any Error
    /// The schedule as a text: `CO_REPLAY=token` and ``Exploration/Strategy/replay(_:)`` repeat it.
    public var token: String
    /// The number of preemptions of the shrunk run: switches away from a coroutine that could continue.
    public var switches: Int
    /// The error, the token, the interleaving with a column for each coroutine, and the dump.
    public var description: String
  }
}
