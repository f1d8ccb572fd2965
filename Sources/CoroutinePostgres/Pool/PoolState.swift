#if Postgres
import Coroutine

/// What the lock of a pool protects.
///
/// Pure: no call waits, connects or closes.
struct PoolState: Sendable {
  /// A connection that was handed out, or is being made for the coroutine that asked.
  struct Use: Sendable {
    var since: ContinuousClock.Instant
    var holder: String
    var wire: Wire?
  }

  enum Phase { case open, closing, closed }

  var phase = Phase.open
  /// The connection that was used last is taken first, so that those above the need become old.
  var idle: [Wire] = []
  var uses: [Int: Use] = [:]
  var waits: [Int: ContinuousClock.Instant] = [:]
  /// Who waits for the last use to end.
  var closers: [Resumer<Void>] = []
  var nextID = 0
  var opened = 0
  var closed = 0
  var discarded = 0
  var cancelled = 0
  /// Whether a coroutine closes old connections.
  var hasReaper = false
  var reaper: Job<Void>?

  mutating func newID() -> Int {
    nextID += 1
    return nextID
  }

  /// What a pool says of those that hold its connections.
  func holders(at now: ContinuousClock.Instant) -> String {
    let all = uses.values.sorted { $0.since < $1.since }
    let some = all.prefix(8).map { "\($0.holder) for \(now - $0.since)" }.joined(separator: ", ")
    return all.count > 8 ? some + ", and \(all.count - 8) more" : some
  }

  /// Removes idle connections that are too old, but keeps `least` of those that have merely been idle.
  mutating func takeOld(at now: ContinuousClock.Instant, maxIdle: Duration, least: Int) -> [Wire] {
    var old: [Wire] = []
    // The first ones have been idle for the longest time.
    var kept: [Wire] = []
    var count = idle.count + uses.count
    for wire in idle {
      let isTooOld = now - wire.born > wire.lifetime
      let isUnneeded = now - wire.idleSince > maxIdle && count > least
      if isTooOld || isUnneeded {
        old.append(wire)
        count -= 1
      } else {
        kept.append(wire)
      }
    }
    idle = kept
    closed += old.count
    return old
  }
}
#endif
