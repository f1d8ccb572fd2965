import Dispatch
import Testing

@testable import Coroutine

/// A busy queue still serves its timers and other blocks.
@Suite(.timeLimit(.minutes(1)), .serialized)
struct FairnessTests {
  /// Two coroutines that wake each other for ever, until `body` has ended.
  private func besidePingPong<Output: Sendable>(
    on queue: DispatchQueue,
    _ body: @escaping @Sendable () async throws -> Output
  ) async throws -> Output {
    let players = (0..<2).map { _ in
      co_launch(on: queue) { while true { try co_yield() } }
    }
    let output = try await body()
    for player in players { player.cancel() }
    for player in players { _ = try? await player.value }
    return output
  }

  @Test func `coroutines that wake each other for ever do not delay a timer of their queue for long`() async throws {
    let queue = DispatchQueue(label: "busy")
    let late = try await besidePingPong(on: queue) {
      try await co_launch(on: queue) {
        var late: [UInt64] = []
        for _ in 0..<51 {
          let due = Clock.now + 1_000_000
          try co_delay(.milliseconds(1))
          late.append(Clock.now - min(due, Clock.now))
        }
        return late.sorted()
      }.value
    }
    // The median: the machine may take the processor away from one of them.
    #expect(late[25] < 20_000_000, "late by \(late) ns")
  }

  @Test func `coroutines that wake each other for ever do not delay another block of their queue for long`()
    async throws
  {
    let queue = DispatchQueue(label: "busy")
    let late = try await besidePingPong(on: queue) {
      try await onOwnThread {
        var late: [UInt64] = []
        for _ in 0..<51 {
          let asked = Clock.now
          queue.sync {}
          late.append(Clock.now - asked)
        }
        return late.sorted()
      }
    }
    #expect(late[25] < 20_000_000, "late by \(late) ns")
  }
}
