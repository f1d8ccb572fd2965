import Coroutine
import Dispatch
import Testing

/// Threads use one channel at once, and every history that they record must be linearizable.
///
/// The worlds' tests try every schedule of a few operations; these add selects, closes, and the memory of a machine.
@Suite("Stress: channel histories", .timeLimit(.minutes(10)))
struct HistoryTests {
  private enum Call: Sendable {
    case send(Int)
    case receive
    case trySend(Int)
    case tryReceive, close
    /// A select between sending the value and receiving one.
    case either(Int)
  }

  private enum Answer: Sendable, Equatable {
    case done
    case value(Int)
    case full, empty, closed, first, again
  }

  private struct Called: Sendable {
    let call: Call
    let answer: Answer
  }

  private struct Model: Sendable {
    let capacity: Int
    var values: [Int] = []
    var isClosed = false

    /// Whether `call` may answer so now.
    ///
    /// Without a buffer a value is handed over at one moment, which is two steps here: the first operation after a send
    /// takes the value.
    mutating func allows(_ called: Called) -> Bool {
      let takes = if case .value = called.answer { true } else { false }
      if capacity == 0, !values.isEmpty, !takes { return false }
      switch (called.call, called.answer) {
      case (.send(let value), .done), (.trySend(let value), .done), (.either(let value), .done):
        values.append(value)
        return !isClosed && values.count <= max(capacity, 1)
      case (.receive, .value(let value)), (.tryReceive, .value(let value)), (.either, .value(let value)):
        return !values.isEmpty && values.removeFirst() == value
      case (.receive, .closed), (.tryReceive, .closed): return isClosed && values.isEmpty
      case (.send, .closed), (.trySend, .closed), (.either, .closed): return isClosed
      case (.trySend, .full): return !isClosed && values.count >= capacity
      case (.tryReceive, .empty): return !isClosed && values.isEmpty
      case (.close, .first):
        defer { isClosed = true }
        return !isClosed
      case (.close, .again): return isClosed
      default: return false
      }
    }
  }

  private static let allowed: @Sendable (inout Model, Called) -> Bool = { $0.allows($1) }

  private let stress = Stress()

  @Test func `the checker accepts possible histories and rejects impossible ones`() {
    /// One operation after the other.
    func holds(_ capacity: Int, _ calls: (Call, Answer)...) -> Bool {
      let history = History<Model>()
      for (call, answer) in calls { history({ Called(call: call, answer: answer) }, Self.allowed) }
      return history.isLinearizable(from: Model(capacity: capacity))
    }
    #expect(holds(1, (.send(1), .done), (.receive, .value(1))))
    #expect(!holds(1, (.send(1), .done), (.receive, .value(2))))
    #expect(!holds(1, (.send(1), .done), (.receive, .value(1)), (.receive, .value(1))))
    // Overtaking: 2 was sent after 1 had been, and came first.
    #expect(!holds(2, (.send(1), .done), (.send(2), .done), (.receive, .value(2)), (.receive, .value(1))))
    // Nobody has taken the value that a send without a buffer has handed over.
    #expect(!holds(0, (.send(1), .done), (.tryReceive, .empty), (.receive, .value(1))))
    // A value was there all the time.
    #expect(!holds(1, (.send(1), .done), (.tryReceive, .empty)))
    // What was sent before the close is received.
    #expect(holds(1, (.send(1), .done), (.close, .first), (.receive, .value(1)), (.receive, .closed)))
    #expect(!holds(1, (.send(1), .done), (.close, .first), (.receive, .closed), (.receive, .value(1))))
    // While another operation waits, either comes first.
    let history = History<Model>()
    history(
      {
        history({ Called(call: .send(1), answer: .done) }, Self.allowed)
        return Called(call: .receive, answer: .value(1))
      },
      Self.allowed
    )
    #expect(history.isLinearizable(from: Model(capacity: 0)))
  }

  /// Sends, receives, the try operations, selects over both sides, and closes.
  @Test(arguments: [0, 1, 2])
  func `every recorded history has an order that explains it`(capacity: Int) async throws {
    let queues = (0..<3).map { DispatchQueue(label: "history.\($0)") }
    for round in 0..<stress.rounds(3_000) {
      let seed = stress.seed &+ UInt64(round * 3 + capacity)
      let history = try await record(seed, capacity, queues)
      let holds = history.isLinearizable(from: Model(capacity: capacity))
      #expect(holds, "seed \(seed), capacity \(capacity): \(history.description)")
      if !holds { return }
    }
  }

  /// Three coroutines on three queues use one channel at once; one of them closes it, so that all end.
  private func record(_ seed: UInt64, _ capacity: Int, _ queues: [DispatchQueue]) async throws -> History<Model> {
    let channel = Channel<Int>(.bounded(capacity))
    let history = History<Model>()
    var numbers = SeededRandom(seed: seed)
    let plans = queues.indices.map { actor in
      (0..<4).map { step in Self.call(value: actor * 10 + step, &numbers) } + (actor == 0 ? [Call.close] : [])
    }
    let jobs = zip(queues, plans).map { queue, plan in
      co_launch(on: queue) { for call in plan { try Self.perform(call, channel, history) } }
    }
    // If the first coroutine waits, it never reaches its close: after a moment the channel is closed from here.
    try await co_launch(on: queues[1]) {
      for _ in 0..<20 { try co_yield() }
      try Self.perform(.close, channel, history)
    }.value
    for job in jobs { try await job.value }
    return history
  }

  private static func call(value: Int, _ numbers: inout SeededRandom) -> Call {
    switch Int.random(in: 0..<12, using: &numbers) {
    case 0..<3: .send(value)
    case 3..<6: .receive
    case 6..<8: .trySend(value)
    case 8..<10: .tryReceive
    default: .either(value)
    }
  }

  private static func perform(_ call: Call, _ channel: Channel<Int>, _ history: History<Model>) throws {
    try history({ Called(call: call, answer: try answer(call, channel)) }, allowed)
  }

  private static func answer(_ call: Call, _ channel: Channel<Int>) throws -> Answer {
    switch call {
    case .send(let value):
      do {
        try channel.send(value)
        return .done
      } catch is ChannelClosedError { return .closed }
    case .receive: return try channel.receive().map { .value($0) } ?? .closed
    case .trySend(let value):
      switch channel.trySend(value) {
      case .sent: return .done
      case .full: return .full
      case .closed: return .closed
      }
    case .tryReceive:
      switch channel.tryReceive() {
      case .received(let value): return .value(value)
      case .empty: return .empty
      case .closed: return .closed
      }
    case .either(let value):
      do {
        return try co_select {
          channel.onSend(value) { .done }
          channel.onReceive { $0.map { .value($0) } ?? .closed }
        }
      } catch is ChannelClosedError { return .closed }
    case .close: return channel.close() ? .first : .again
    }
  }
}
