import Coroutine
import Synchronization

// The rule for work that has waited for too long: the age of the queue, as CoDel measures it (RFC 8289), with the
// decision of servers, as Facebook's Folly makes it.
//
//                      the least age of an interval is above the target
//   NORMAL: all are admitted  ------------------------------------------->  OVERLOADED: what is older than twice the
//                             <-------------------------------------------  target is refused
//                      ... is not
//
// A queue that is long for a moment has some work in each interval that has waited for a short time: a burst. A queue
// in which all work of an interval was late is a standing one: it adds delay, and no throughput. CoDel itself then
// drops one packet, and the next one sooner and sooner, because the sender of a packet slows down when it is lost.
// Clients of a server do not, so here everything is refused that is too old to be worth the work.
//
// Invariants
//  1. One caller ends an interval: the one whose compare-and-swap moves `end`. It alone exchanges `least`, and decides.
//  2. `least` is at most the age of each work that was offered in the interval, but for those that run beside the
//     exchange: they count to the old interval or to the new one.
//  3. Each call of `admit` adds to one of the two counters.

/// A rule that refuses work while a server is overloaded: when it has waited for too long to be worth doing.
///
/// <!-- compiled: Tests/CoroutineNetTests/SocketSnippets.swift -->
/// ```swift
/// let shedding = LoadShedding(target: .milliseconds(20)) { connection in
///   try connection.write("busy, try later\n".utf8)
///   try connection.closeLingering()
/// }
/// var options = Server.Options()
/// options.maxConnections = 200
/// options.shedding = shedding
/// ```
///
/// A server whose queue grows serves every request late, in the end after its client has given up. This rule keeps the
/// age of the queue near a target: it refuses what is too old, so that the rest is served in time. One object serves
/// one queue. Put it into ``Server/Options/shedding`` for connections; for other work call ``admit(after:)``.
public final class LoadShedding: Sendable {
  /// The age that a queue may have all the time.
  public let target: Duration
  /// The time in which the queue has to reach the target once, or it counts as overloaded.
  public let interval: Duration
  private let refusal: (@Sendable (Connection) throws -> Void)?
  private let end = Atomic<UInt64>(0)
  private let least = Atomic<Int64>(0)
  private let overload = Atomic<Bool>(false)
  private let admissions = Atomic<Int>(0)
  private let refusals = Atomic<Int>(0)

  /// Creates a rule, and its counters.
  ///
  /// - Parameters:
  ///   - target: The age that the queue may have all the time. While it is overloaded, what is older than twice that is
  ///     refused.
  ///   - interval: The time in which some work has to be younger than the target. A burst that ends within it refuses
  ///     nothing.
  ///   - refuse: Answers a connection that a server refuses; it is closed afterwards. If nil, the connection is closed
  ///     at once.
  public init(
    target: Duration = .milliseconds(5),
    interval: Duration = .milliseconds(100),
    refuse: (@Sendable (Connection) throws -> Void)? = nil
  ) {
    self.target = target
    self.interval = interval
    refusal = refuse
  }

  /// Decides about one piece of work, when it is about to begin.
  ///
  /// Never suspends; any thread; constant time. Called once for each piece of work, whatever the decision.
  ///
  /// - Parameter waited: The time for which the work has waited.
  /// - Returns: Whether to do the work. If false, refuse it, and do as little as possible for it.
  public func admit(after waited: Duration) -> Bool {
    let age = waited.nanoseconds
    let now = CallerClock.now
    let old = end.load(ordering: .relaxed)
    let next = now + UInt64(max(0, interval.nanoseconds))
    if now >= old, end.compareExchange(expected: old, desired: next, ordering: .relaxed).exchanged {
      overload.store(least.exchange(age, ordering: .relaxed) > target.nanoseconds, ordering: .relaxed)
    } else {
      least.min(age, ordering: .relaxed)
    }
    let isAdmitted = !isOverloaded || age <= target.nanoseconds &* 2
    if isAdmitted {
      admissions.wrappingAdd(1, ordering: .relaxed)
    } else {
      refusals.wrappingAdd(1, ordering: .relaxed)
    }
    return isAdmitted
  }

  /// Whether all work of the last interval has waited for more than the target.
  public var isOverloaded: Bool { overload.load(ordering: .relaxed) }
  /// The number of pieces of work that were admitted.
  public var admitted: Int { admissions.load(ordering: .relaxed) }
  /// The number of pieces of work that were refused.
  public var refused: Int { refusals.load(ordering: .relaxed) }

  /// Answers a connection that was refused.
  func refuse(_ connection: Connection) throws { try refusal?(connection) }
}
