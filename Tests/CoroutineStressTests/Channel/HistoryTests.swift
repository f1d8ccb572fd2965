import Coroutine
import Dispatch
import Synchronization
import Testing

@Suite("Stress: channel histories", .timeLimit(.minutes(5)))
struct HistoryTests {
  private let stress = Stress()

  @Test func `the checker accepts possible histories and rejects impossible ones`() {
    let sent = Operation(kind: .send(1), answer: .done, called: 1, returned: 2)
    let received = Operation(kind: .receive, answer: .value(1), called: 3, returned: 4)
    #expect(isLinearizable([sent, received], capacity: 1))
    // A rendezvous send cannot end before its receiver has come.
    #expect(!isLinearizable([sent, received], capacity: 0))
    let wrong = Operation(kind: .receive, answer: .value(2), called: 3, returned: 4)
    #expect(!isLinearizable([sent, wrong], capacity: 1))
    let twice = [sent, received, received]
    #expect(!isLinearizable(twice, capacity: 1))
    // Overtaking: 2 was sent after 1 had been, and came first.
    let later = Operation(kind: .send(2), answer: .done, called: 3, returned: 4)
    let first = Operation(kind: .receive, answer: .value(2), called: 5, returned: 6)
    let second = Operation(kind: .receive, answer: .value(1), called: 7, returned: 8)
    #expect(!isLinearizable([sent, later, first, second], capacity: 2))
    // A select that waits for a partner, and an operation that would have been the partner.
    let waiting = Operation(kind: .either(7), answer: .value(1), called: 0, returned: 3)
    #expect(isLinearizable([waiting, sent], capacity: 0))
    let alone = Operation(kind: .either(7), answer: .value(7), called: 0, returned: 3)
    #expect(!isLinearizable([alone], capacity: 0))
    // A value was there all the time.
    let blind = Operation(kind: .tryReceive, answer: .empty, called: 3, returned: 4)
    #expect(!isLinearizable([sent, blind], capacity: 1))
  }

  /// Sends, receives, the try operations, selects over both sides, and closes.
  @Test(arguments: [0, 1, 2])
  func `every recorded history has an order that explains it`(capacity: Int) async throws {
    let queues = (0..<3).map { DispatchQueue(label: "history.\($0)") }
    for round in 0..<stress.rounds(3_000) {
      let seed = stress.seed &+ UInt64(round * 3 + capacity)
      let history = try await record(seed, capacity, queues)
      let holds = isLinearizable(history, capacity: capacity)
      #expect(holds, "seed \(seed), capacity \(capacity): \(history)")
      if !holds { return }
    }
  }

  /// Three coroutines on three queues use one channel at once; one of them closes it, so that all end.
  private func record(_ seed: UInt64, _ capacity: Int, _ queues: [DispatchQueue]) async throws -> [Operation] {
    let channel = Channel<Int>(.bounded(capacity))
    let clock = Clock()
    var numbers = SeededRandom(seed: seed)
    let plans = queues.indices.map { actor in
      (0..<4).map { step in Self.operation(value: actor * 10 + step, &numbers) }
        + (actor == 0 ? [Operation.Kind.close] : [])
    }
    let jobs = zip(queues, plans).map { queue, plan in
      co_launch(on: queue) { try plan.map { try Self.perform($0, channel, clock) } }
    }
    var history: [Operation] = []
    for job in jobs.dropFirst() + jobs.prefix(1) {
      // If the first coroutine waits, it never reaches its close: after a moment the channel is closed from here.
      if job.id == jobs[1].id { history.append(try await Self.closeLate(channel, clock, queues[1])) }
      history += try await job.value
    }
    return history
  }

  private static func closeLate(_ channel: Channel<Int>, _ clock: Clock, _ queue: DispatchQueue) async throws
    -> Operation
  {
    try await co_launch(on: queue) {
      for _ in 0..<20 { try co_yield() }
      return try perform(.close, channel, clock)
    }.value
  }

  private static func operation(value: Int, _ numbers: inout SeededRandom) -> Operation.Kind {
    switch Int.random(in: 0..<12, using: &numbers) {
    case 0..<3: .send(value)
    case 3..<6: .receive
    case 6..<8: .trySend(value)
    case 8..<10: .tryReceive
    default: .either(value)
    }
  }

  private static func perform(
    _ kind: Operation.Kind,
    _ channel: Channel<Int>,
    _ clock: Clock
  ) throws -> Operation {
    var operation = Operation(kind: kind)
    operation.called = clock.timerWakeup()
    switch kind {
    case .send(let value):
      do { try channel.send(value) } catch is ChannelClosedError { operation.answer = .closed }
    case .receive:
      operation.answer = try channel.receive().map { .value($0) } ?? .closed
    case .trySend(let value):
      switch channel.trySend(value) {
      case .sent: operation.answer = .done
      case .full: operation.answer = .full
      case .closed: operation.answer = .closed
      }
    case .tryReceive:
      switch channel.tryReceive() {
      case .received(let value): operation.answer = .value(value)
      case .empty: operation.answer = .empty
      case .closed: operation.answer = .closed
      }
    case .either(let value):
      do {
        operation.answer = try co_select {
          channel.onSend(value) { .done }
          channel.onReceive { $0.map { .value($0) } ?? .closed }
        }
      } catch is ChannelClosedError { operation.answer = .closed }
    case .close:
      operation.answer = channel.close() ? .first : .again
    }
    operation.returned = clock.timerWakeup()
    return operation
  }

  /// A shared clock: no two readings are equal.
  private final class Clock: Sendable {
    private let time = Atomic(0)
    func timerWakeup() -> Int { time.wrappingAdd(1, ordering: .sequentiallyConsistent).newValue }
  }
}
