/// The pauses between the attempts of a retry.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/RecipeSnippets.swift -->
/// ```swift
/// let backoff = Backoff.exponential(from: .milliseconds(100), limit: .seconds(10))
/// var failed = 0
/// while true {
///   do {
///     return try body()
///   } catch {
///     failed += 1
///     if failed >= attempts { throw error }
///     try co_delay(backoff.pause(after: failed))
///   }
/// }
/// ```
public struct Backoff: Sendable {
  private let pauses: @Sendable (Int) -> Duration

  /// Creates a back-off from a closure.
  ///
  /// `pause` gets the number of the failed attempt, from one on, and returns the pause after it.
  public init(_ pause: @escaping @Sendable (_ failedAttempt: Int) -> Duration) { pauses = pause }

  /// No pause.
  public static var none: Backoff { Backoff { _ in .zero } }

  /// The same pause after each attempt.
  public static func constant(_ pause: Duration) -> Backoff { Backoff { _ in pause } }

  /// A pause that grows from `first` by `factor` after each attempt, up to `limit`.
  ///
  /// The actual pause is a random part of it, between half and all, so that clients that failed together do not retry
  /// together. A factor below 1 shortens the pause. A negative one counts as 0, and one that is not a number as
  /// infinity. Negative durations count as zero, and durations beyond 292 years as 292 years.
  public static func exponential(
    from first: Duration,
    factor: Double = 2,
    limit: Duration = .seconds(30)
  ) -> Backoff {
    let (first, limit) = (max(0, first.nanoseconds), max(0, limit.nanoseconds))
    let factor = factor.isNaN ? .infinity : max(0, factor)
    return Backoff { attempt in
      // Not infinity times zero.
      let pause = first == 0 ? 0 : Double(first) * power(factor, max(1, attempt) - 1)
      let part = (min(pause, Double(limit)) * (0.5 + Carrier.drawFraction() / 2)).rounded(.up)
      return .nanoseconds(min(Int64(exactly: part) ?? .max, limit))
    }
  }

  /// Returns `factor` to the power of `exponent`, by squaring: unlike `pow`, it is the same on every processor.
  ///
  /// `factor` is not negative. A result beyond every duration counts as zero or infinity, so no number is denormal.
  private static func power(_ factor: Double, _ exponent: Int) -> Double {
    var (result, square, rest) = (1.0, factor, exponent)
    while rest > 0 {
      guard (1e-100...1e100).contains(square) else { return factor < 1 ? 0 : .infinity }
      if rest & 1 == 1 { result *= square }
      square *= square
      rest >>= 1
    }
    return result
  }

  /// Returns the pause after the failed attempt of this number, from one on.
  public func pause(after failedAttempt: Int) -> Duration { pauses(failedAttempt) }
}
