#if Postgres
import Synchronization

/// The right of one coroutine to use a connection.
///
///   FREE --begin--> TAKEN --end--> FREE
///    | close          | close
///    v                v
///   CLOSED          CLOSING --end--> CLOSED
///
/// Invariants
///  1. One coroutine at most is between `begin` and `end`: the one whose compare-and-swap found FREE.
///  2. After a close, no `begin` succeeds.
/// A close against a `begin`: both compare and swap FREE, so one of them sees the other. `close` returns whether the
/// connection is free, and so whether the caller may use it from then on.
final class Claim: Sendable {
  private static var free: UInt8 { 0 }
  private static var taken: UInt8 { 1 }
  private static var closing: UInt8 { 2 }
  private static var closed: UInt8 { 3 }

  private let word = Atomic<UInt8>(0)

  /// Takes the right; throws `.busy` or `.ended`.
  func begin() throws {
    let (isMine, seen) = word.compareExchange(
      expected: Self.free,
      desired: Self.taken,
      ordering: .acquiringAndReleasing
    )
    if isMine { return }
    throw seen == Self.taken
      ? PostgresError(.busy, "another statement, a stream or a copy uses this connection")
      : PostgresError(.ended, "this connection or transaction was used after its end")
  }

  /// Gives the right back.
  func end() {
    let (isFree, _) = word.compareExchange(expected: Self.taken, desired: Self.free, ordering: .acquiringAndReleasing)
    if !isFree { word.store(Self.closed, ordering: .releasing) }
  }

  /// Lets no statement begin any more; returns false if one still runs.
  func close() -> Bool {
    var old = word.load(ordering: .acquiring)
    while true {
      let next = old == Self.taken ? Self.closing : old == Self.free ? Self.closed : old
      let (isDone, seen) = word.compareExchange(expected: old, desired: next, ordering: .acquiringAndReleasing)
      if isDone { return next == Self.closed }
      old = seen
    }
  }

  func withClaim<R>(_ body: () throws -> R) throws -> R {
    try begin()
    defer { end() }
    return try body()
  }
}
#endif
