import Coroutine
import Testing

@Suite("Channel: misuse traps with a message", .timeLimit(.minutes(10)))
struct ChannelMisuseTests {
  @Test func `a negative capacity`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = Channel<Int>(.bounded(-1))
    }
    expect(result, says: "A channel cannot hold -1 values: use 0 or .rendezvous to hold none.")
  }

  @Test func `a dropping channel that holds nothing`() async {
    let oldest = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = Channel<Int>(.dropOldest(0))
    }
    expect(oldest, says: "A channel that drops must hold at least 1 value, not 0: else it would drop all.")
    let newest = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = Channel<Int>(.dropNewest(-3))
    }
    expect(newest, says: "A channel that drops must hold at least 1 value, not -3: else it would drop all.")
  }

  @Test func `a negative count`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = try synchronously { try Channel<Int>().receive(count: -2) }
    }
    expect(result, says: "-2 values cannot be received: ask for 0 or more.")
  }

  private func expect(_ result: ExitTest.Result?, says sentence: String) {
    let text = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains(sentence), "it said: \(text)")
  }
}
