import CCoroutine
import Coroutine
import Dispatch
import Testing

@Suite("Stress: select", .timeLimit(.minutes(10)))
struct SelectStressTests {
  private let stress = Stress()

  /// Two selects on two queues can match in two channels at once: exactly one match may happen, the same for both.
  @Test func `two selects that match each other agree on the channel`() async throws {
    let rounds = stress.rounds(100_000)
    let (one, other) = (Channel<Int>(), Channel<Int>())
    let first = co_launch(on: DispatchQueue(label: "select.first")) {
      try (0..<rounds).map { round in
        try co_select {
          one.onSend(round) { round }
          other.onReceive { -1 - ($0 ?? 0) }
        }
      }
    }
    let second = co_launch(on: DispatchQueue(label: "select.second")) {
      try (0..<rounds).map { round in
        try co_select {
          other.onSend(round) { -1 - round }
          one.onReceive { $0 ?? 0 }
        }
      }
    }
    let (seen, alsoSeen) = (try await first.value, try await second.value)
    #expect(seen == alsoSeen)
    #expect(seen.contains { $0 >= 0 } || seen.contains { $0 < 0 })
  }

  /// All may send to and receive from all channels, on queues and workers; at the end those without a partner are
  /// cancelled.
  @Test func `among many selects every sent value is received once`() async throws {
    let channels = (0..<3).map { _ in Channel<Int>() }
    let (sent, received) = (Total(), Total())
    let (sends, receives, commits) = (Total(), Total(), Total())
    let wanted = stress.rounds(200_000)
    let queues = (0..<2).map { DispatchQueue(label: "crowd.\($0)") }
    let jobs = (0..<8).map { member in
      co_launch(on: member < 4 ? queues[member & 1] : nil) {
        var numbers = stress.random(member)
        while commits.value < wanted {
          let start = Int(numbers.next() % 3)
          let value = Int(numbers.next() & 0xFFFF)
          try co_select(biased: numbers.next() & 1 == 0) {
            for index in 0..<3 {
              channels[(start + index) % 3].onReceive {
                received.add($0 ?? 0)
                receives.add(1)
              }
              channels[(start + index) % 3].onSend(value) {
                sent.add(value)
                sends.add(1)
              }
            }
          }
          commits.add(1)
        }
      }
    }
    try await co_launch { while commits.value < wanted { try co_delay(.milliseconds(1)) } }.value
    // A waiting select that finds a partner continues and then stops by itself.
    for job in jobs { job.cancel() }
    for job in jobs { _ = try? await job.value }
    #expect(sent.value == received.value, "seed \(stress.seed)")
    #expect(sends.value == receives.value)
  }

  /// In a separate process, whose memory nothing else changes.
  @Test func `a million unselected cases on a channel leave nothing behind`() async {
    await #expect(processExitsWith: .success) {
      let growth = try await co_launch(on: DispatchQueue(label: "losing")) {
        try loseSelects(Stress().rounds(1_000_000))
      }.value
      // AddressSanitizer keeps freed memory for a while; there a leftover waiter is a use of a dead stack.
      let keepsFreed = cco_compiled_sanitizers() & CCO_ADDRESS_SANITIZER.rawValue != 0
      #expect(keepsFreed || growth < 4 << 20, "\(growth) bytes")
    }
  }

  @Test func `promises of unselected cases keep no waiter`() async throws {
    let rounds = stress.rounds(100_000)
    try await co_launch(on: DispatchQueue(label: "losing promise")) {
      let (winner, loser) = (Channel<Int>(), Promise<Int>())
      let feeder = co_launch { while true { try winner.send(1) } }
      for _ in 0..<rounds {
        let value = try co_select {
          loser.onAwait { _ in 0 }
          winner.onReceive { $0 ?? 0 }
        }
        #expect(value == 1)
      }
      feeder.cancel()
      loser.fulfill(1)
      #expect(try co_await(loser) == 1)
    }.value
  }
}

/// Returns the number of bytes by which the process has grown after the first tenth of the selects.
private func loseSelects(_ rounds: Int) throws -> Int {
  let (winner, loser) = (Channel<Int>(), Channel<Int>())
  let feeder = co_launch { while true { try winner.send(1) } }
  var sum = 0
  var before = 0
  for round in 0..<rounds {
    if round == rounds / 10 { before = residentMemory() }
    sum += try co_select {
      winner.onReceive { $0 ?? 0 }
      loser.onReceive { _ in 0 }
      loser.onSend(2) { 0 }
      SelectCase.onTimeout(.seconds(3_600)) { 0 }
    }
  }
  let growth = residentMemory() - before
  #expect(sum == rounds)
  #expect(loser.trySend(1) == .full)
  #expect(loser.tryReceive() == nil)
  // The process ends next, and a sanitizer then looks for what is not released.
  feeder.cancel()
  _ = try? feeder.join()
  return growth
}

private func == (found: TryReceive<Int>, wanted: Int?) -> Bool {
  if case .received(let value) = found { value == wanted } else { wanted == nil }
}
