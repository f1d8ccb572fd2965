import Testing

@_spi(Hosting) @testable import Coroutine

/// A cause of a close.
private struct Broken: Error {}

@Suite("co_map over a channel", .timeLimit(.minutes(10)))
struct ChannelMapTests {
  @Test(arguments: [false, true]) func `maps the values in order, and receives no more than it works on`(
    isShielded: Bool
  ) async throws {
    let numbers = Channel<Int>(.unbounded)
    for number in 0..<6 { _ = numbers.trySend(number) }
    // However long the second takes from its failure to its end: nothing begins meanwhile.
    let left = try await co_launch { () -> Int in
      let map = { () throws -> Void in
        _ = try co_map(numbers, limit: 1) { number in if number == 1 { throw Broken() } }
      }
      do { if isShielded { try co_shield(map) } else { try map() } } catch is Broken {}
      return numbers.count
    }
    .value
    #expect(left == 4)
    numbers.close()
    let mapped = try await co_launch { try co_map(numbers, limit: 2) { $0 * 2 } }.value
    #expect(mapped == [4, 6, 8, 10])
  }

  /// By its own cancellation, which the scope takes for no failure.
  @Test func `an element whose loop has ended is a failure, and no wait without an end`() async throws {
    let host = HostedScheduler(Loop())
    let whileItRuns = try await co_launch {
      outcome {
        _ = try co_map([1, 2, 3], limit: 1) { number in
          if number == 2 { host.drain.end(Oops("over")) }
          try co_switch(to: host)
        }
      }
    }
    .value
    #expect(whileItRuns == "Oops(over)")
    let other = HostedScheduler(Loop())
    let beforeItBegins = try await co_launch(on: other) {
      co_shield {
        other.drain.end(Oops("over"))
        return outcome { _ = try co_map([1, 2, 3], limit: 1) { $0 } }
      }
    }
    .value
    #expect(beforeItBegins != "")
  }

  @Test func `throws the cause of the close, and not a part of the values`() async throws {
    let numbers = Channel<Int>(.unbounded)
    _ = numbers.trySend(1)
    numbers.close(Broken())
    await #expect(throws: Broken.self) { try await co_launch { try co_map(numbers, limit: 2) { $0 } }.value }
  }
}
