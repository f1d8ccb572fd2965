/// The pauses before the restarts of an actor that fails again and again.
///
/// ```swift
/// let supervisor = Supervisor(
///   limit: RestartLimit(restarts: 100, within: .seconds(600)),
///   backoff: .exponential(from: .milliseconds(10), limit: .seconds(5))
/// )
/// ```
///
/// The pause grows with each end of the same actor. It begins anew after a life that was long enough. During the pause
/// the actor rests: its mailbox takes messages, and the next life handles them. The supervisor goes on with its other
/// actors. Actors that are restarted together (``RestartStrategy``) end at once, and begin together after the pause. A
/// supervisor that is stopped or cancelled does not wait for pauses.
public struct RestartBackoff: Sendable {
  private let pauses: @Sendable (Int) -> Duration
  let reset: Duration

  /// Creates a back-off from a closure.
  ///
  /// - Parameters:
  ///   - reset: The length of a life after which the count begins anew.
  ///   - pause: Gets the number of ends that have followed one another, from one on, and returns the pause before the
  ///     restart; zero or less restarts at once. The supervisor calls it and waits for it, so it must neither block nor
  ///     suspend.
  public init(resettingAfter reset: Duration = .seconds(60), _ pause: @escaping @Sendable (_ ends: Int) -> Duration) {
    self.reset = reset
    pauses = pause
  }

  /// No pause.
  public static var none: RestartBackoff { RestartBackoff { _ in .zero } }

  /// The same pause before each restart.
  public static func constant(_ pause: Duration) -> RestartBackoff { RestartBackoff { _ in pause } }

  /// A pause of `first`, which doubles with each end up to `limit`.
  ///
  /// Not random: the actors of one supervisor need not avoid one another.
  public static func exponential(
    from first: Duration,
    limit: Duration,
    resettingAfter reset: Duration = .seconds(60)
  ) -> RestartBackoff {
    let (first, limit) = (max(0, first.nanoseconds), max(0, limit.nanoseconds))
    return RestartBackoff(resettingAfter: reset) { ends in
      let (pause, overflow) = first.multipliedReportingOverflow(by: ends > 62 ? .max : Int64(1) << (ends - 1))
      return .nanoseconds(overflow ? limit : min(pause, limit))
    }
  }

  func pause(after ends: Int) -> Duration { pauses(ends) }
}
