import Coroutine
import Testing

// The code of the article CancellationAndTime.md about hand-offs, compiled and run.

/// Takes an item that comes within `time`; nil if none does.
private func pop(_ items: Channel<Int>, within time: Duration) throws -> Int? {
  try co_select {
    items.onReceive { item in item }
      .onTimeout(time) { nil }
  }
}

/// Takes an item from the first of several queues that has one, as a blocking pop of several keys does.
private func pop(_ queues: [String: Channel<Int>], within time: Duration) throws -> (key: String, item: Int?)? {
  try co_select {
    for (key, items) in queues { items.onReceive { item in (key, item) } }
    SelectCase.onTimeout(time) { nil }
  }
}

@Suite("Hand-offs that race a timeout", .timeLimit(.minutes(10)))
struct HandOffSnippets {
  @Test(.inWorlds) func `an item that comes at the instant of the timeout is taken, or stays`() throws {
    let items = Channel<Int>(.unbounded)
    var taken: [Int] = []
    let sender = co_launch {
      for number in 0..<50 {
        try co_delay(.milliseconds(10))
        try items.send(number)
      }
    }
    while taken.count < 50 {
      if let item = try pop(items, within: .milliseconds(10)) { taken.append(item) }
    }
    #expect(taken == Array(0..<50))
    try sender.join()
    #expect(try pop(items, within: .zero) == nil)
    items.close()
    #expect(try pop(["a": Channel<Int>(), "b": items], within: .seconds(1))?.key == "b")
    #expect(try pop(["a": Channel<Int>()], within: .seconds(1)) == nil)
  }
}
