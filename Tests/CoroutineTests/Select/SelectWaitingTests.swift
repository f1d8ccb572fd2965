import Synchronization
import Testing

@testable import Coroutine

@Suite("co_select: cases that wait for the same thing", .timeLimit(.minutes(10)))
struct SelectWaitingTests {
  /// Counts how often each of two cases gets a value that comes after the select has started to wait.
  private func shares(biased: Bool, _ cases: @escaping @Sendable (Channel<Int>) -> [SelectCase<Int>]) throws -> [Int] {
    try Simulation(seed: 17).run {
      let channel = Channel<Int>()
      var counts = [0, 0]
      for _ in 0..<1_000 {
        let selecting = co_launch { try co_select(biased: biased) { cases(channel) } }
        // The select has found no value, and waits.
        while !selecting.isWaiting { try co_yield() }
        _ = channel.trySend(1)
        _ = channel.tryReceive()
        counts[try selecting.join()] += 1
      }
      return counts
    }
  }

  @Test func `two cases that wait to receive from one channel get it equally often`() throws {
    let counts = try shares(biased: false) { channel in [channel.onReceive { _ in 0 }, channel.onReceive { _ in 1 }] }
    // 500 each are expected; seven standard deviations are allowed.
    for count in counts { #expect((390...610).contains(count), "\(counts)") }
  }

  @Test func `two cases that wait to send to one channel get it equally often`() throws {
    let counts = try shares(biased: false) { channel in [channel.onSend(0) { 0 }, channel.onSend(1) { 1 }] }
    for count in counts { #expect((390...610).contains(count), "\(counts)") }
  }

  @Test func `in a biased select the first case gets the value`() throws {
    let counts = try shares(biased: true) { channel in [channel.onReceive { _ in 0 }, channel.onReceive { _ in 1 }] }
    #expect(counts == [1_000, 0])
  }
}

extension AnyJob {
  fileprivate var isWaiting: Bool { record.pointee.wait.load(ordering: .acquiring) & 0xFF == 1 }
}
