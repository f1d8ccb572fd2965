import Coroutine
import Testing

/// A cause of a close.
private struct Broken: Error {}

@Suite("co_map over a channel", .timeLimit(.minutes(10)))
struct ChannelMapTests {
  @Test func `maps the values in order, and receives no more than it works on`() async throws {
    let numbers = Channel<Int>(.unbounded)
    for number in 0..<6 { _ = numbers.trySend(number) }
    let left = try await co_launch { () -> Int in
      do {
        _ = try co_map(numbers, limit: 1) { number in if number == 1 { throw Broken() } }
      } catch is Broken {}
      return numbers.count
    }
    .value
    // Two, and perhaps one more while the second fails.
    #expect(left >= 3)
    numbers.close()
    let mapped = try await co_launch { try co_map(numbers, limit: 2) { $0 * 2 } }.value
    #expect(mapped == Array((6 - left)..<6).map { $0 * 2 })
  }

  @Test func `throws the cause of the close, and not a part of the values`() async throws {
    let numbers = Channel<Int>(.unbounded)
    _ = numbers.trySend(1)
    numbers.close(Broken())
    await #expect(throws: Broken.self) { try await co_launch { try co_map(numbers, limit: 2) { $0 } }.value }
  }
}
