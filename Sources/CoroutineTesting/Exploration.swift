/// What an exploration found.
public struct Exploration: Sendable {
  /// The number of schedules tried, without the runs that shrink and describe a failure.
  public var runs: Int
  /// Whether every schedule of the strategy was tried; for `exhaustive`, within `most`.
  public var isComplete: Bool
  /// The first failure, shrunk.
  public var failure: Failure?

  /// A failing run.
  public struct Failure: Error, CustomStringConvertible, Sendable {
    /// What the body threw; ``Deadlock``, ``LeftRunning``, ``RealWait`` or ``Nondeterminism`` for what the world found.
    public var error: any Error
    /// The schedule.
    ///
    /// `CO_REPLAY=token` and ``Strategy/replay(_:)`` repeat it.
    public var token: String
    /// The number of choices in which the shrunk run differs from the order "first in, first out".
    public var switches: Int
    /// The interleaving, one column a coroutine, then the dump.
    public var description: String
  }
}
