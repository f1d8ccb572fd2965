import Dispatch
import Synchronization
import Testing

@testable import Coroutine

/// A busy queue still serves its timers and other blocks.
///
/// How late they are is counted in turns of the coroutines that keep the queue busy, and not in time: a thread that
/// gets no processor takes no turns either.
@Suite(.tags(.realClock), .timeLimit(.minutes(10)), .serialized)
struct FairnessTests {
  /// The turns of two coroutines that wake each other for ever.
  private final class PingPong: Sendable {
    private let taken = Atomic(0)
    private let players = Locked<[Job<Void>]>([])
    /// The turns so far.
    var turns: Int { taken.load(ordering: .relaxed) }
    /// Due times in nanoseconds, and the turns that had been taken when a player found that one had passed.
    let due = Atomic<UInt64>(.max)
    let turnsWhenDue = Atomic(0)
    /// The shortest time, in nanoseconds, that 20 turns have taken: in so few, no other thread got the processor.
    private let shortest = Atomic<UInt64>(.max)
    /// The turns of 20 ms without a pause; without limit if hardly any turn was taken.
    var many: Int {
      let shortest = shortest.load(ordering: .relaxed)
      return shortest == .max ? .max : Int(20 * 20_000_000 / max(1, shortest))
    }

    init(on queue: DispatchQueue) {
      players.current = (0..<2).map { _ in
        co_launch(on: queue) { [self] in
          var (own, began) = (0, Clock.now)
          while true {
            try co_yield()
            taken.wrappingAdd(1, ordering: .relaxed)
            own += 1
            if own % 10 == 0 {
              let now = Clock.now
              shortest.min(now - began, ordering: .relaxed)
              began = now
            }
            if due.load(ordering: .relaxed) <= Clock.now {
              due.store(.max, ordering: .relaxed)
              turnsWhenDue.store(turns, ordering: .relaxed)
            }
          }
        }
      }
    }

    func end() async {
      for player in players.current { player.cancel() }
      for player in players.current { _ = try? await player.value }
    }
  }

  /// The medians of some measurements of how late something is, in turns: up to five, until one is good.
  ///
  /// A thread may lose its processor between two lines, for a while in most of the 51 times.
  private static func medians(_ game: PingPong, _ late: () throws -> Int) rethrows -> [Int] {
    var medians: [Int] = []
    for _ in 0..<5 {
      let all = try (0..<51).map { _ in try late() }.sorted()
      medians.append(all[25])
      if all[25] < game.many { break }
    }
    return medians
  }

  @Test func `coroutines that wake each other for ever do not delay a timer of their queue for long`() async throws {
    let queue = DispatchQueue(label: "busy")
    let game = PingPong(on: queue)
    let late = try await co_launch(on: queue) {
      try Self.medians(game) {
        game.turnsWhenDue.store(game.turns, ordering: .relaxed)
        game.due.store(Clock.now + 1_000_000, ordering: .relaxed)
        try co_delay(.milliseconds(1))
        // If no player has looked since, the timer was not late at all.
        let isLate = game.due.exchange(.max, ordering: .relaxed) == .max
        return isLate ? game.turns - game.turnsWhenDue.load(ordering: .relaxed) : 0
      }
    }.value
    await game.end()
    #expect(late.contains { $0 < game.many }, "late by \(late) turns")
  }

  @Test func `coroutines that wake each other for ever do not delay another block of their queue for long`()
    async throws
  {
    let queue = DispatchQueue(label: "busy")
    let game = PingPong(on: queue)
    let late = try await onOwnThread {
      Self.medians(game) {
        let asked = game.turns
        return queue.sync { game.turns - asked }
      }
    }
    await game.end()
    #expect(late.contains { $0 < game.many }, "late by \(late) turns")
  }
}
