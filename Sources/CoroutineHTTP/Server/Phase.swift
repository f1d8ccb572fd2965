#if HTTP
import Synchronization

// What a connection does, in one word.
//
//   IDLE --first byte--> HEAD --complete--> BUSY <--> READING, WRITING      UPGRADED: for ever
//     |                    |                  |            |
//     +--------------------+------------------+------------+---- the sweep or the stop ----> ENDED (reason)
//
// Invariants
//  1. The word has a count of steps above three bits of the kind. Each step of the connection adds 1, so a word that
//     has not changed means that nothing happened.
//  2. The connection's steps are exchanges from the value that it stored last. One that fails means ENDED.
//  3. Only the connection leaves ENDED, by `restart`.

/// The current step of a connection, and its end by others.
struct Phase: ~Copyable, Sendable {
  enum Kind: UInt64, Sendable {
    case idle, head, busy, reading, writing, upgraded
    case ended = 7
  }

  enum Reason: UInt64, Sendable {
    case idleForTooLong, headLate, bodyLate, stalled, stopped, peerHasGone

    /// The cause that a cancelled handler sees.
    var error: HTTPError {
      switch self {
      case .idleForTooLong, .headLate, .stopped: .headLate
      case .bodyLate: .bodyLate
      case .stalled: .stalled
      case .peerHasGone: .peerHasGone
      }
    }
  }

  private let word = Atomic<UInt64>(0)

  var seen: UInt64 { word.load(ordering: .sequentiallyConsistent) }

  static func kind(of word: UInt64) -> Kind { Kind(rawValue: word & 7) ?? .ended }

  /// Moves on to a step from `current`, the connection's last one; returns false if the connection was ended.
  func enter(_ kind: Kind, from current: inout UInt64) -> Bool {
    let next = ((current & ~7) &+ 8) & ~Self.endedBit | kind.rawValue
    let (isExchanged, _) = word.compareExchange(
      expected: current,
      desired: next,
      ordering: .sequentiallyConsistent
    )
    if isExchanged { current = next }
    return isExchanged
  }

  private static var endedBit: UInt64 { 1 << 63 }

  /// Ends the connection if its word is still `seen`.
  func end(_ seen: UInt64, because reason: Reason) -> Bool {
    word.compareExchange(
      expected: seen,
      desired: Self.endedBit | reason.rawValue << 3 | Kind.ended.rawValue,
      ordering: .sequentiallyConsistent
    ).exchanged
  }

  func end(ifIdleBecause reason: Reason) -> Bool {
    let seen = seen
    return Self.kind(of: seen) == .idle && end(seen, because: reason)
  }

  /// Why the connection was ended; nil if it was not.
  var reason: Reason? {
    let seen = seen
    return seen & Self.endedBit == 0 ? nil : Reason(rawValue: (seen & ~Self.endedBit) >> 3)
  }

  /// Begins anew after an end.
  func restart(_ current: inout UInt64) {
    current = Kind.busy.rawValue
    word.store(current, ordering: .sequentiallyConsistent)
  }
}
#endif
