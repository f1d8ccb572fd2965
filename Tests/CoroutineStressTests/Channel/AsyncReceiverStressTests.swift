import Coroutine
import Dispatch
import Testing

@Suite("Stress: async receivers", .timeLimit(.minutes(10)))
struct AsyncReceiverStressTests {
  private let stress = Stress()

  enum Event: CaseIterable, Sendable { case close, putBack, both }

  /// A thread that claims async receivers wakes them after leaving the channel's lock; at that instant their Tasks are
  /// cancelled.
  ///
  /// A cancelled batch puts its values back to several receivers at once; a close claims all receivers. Both, and the
  /// cancelling of the Tasks, process the channels in the same order on separate queues. Each value is received once or
  /// reaches the hook once.
  @Test(arguments: Event.allCases)
  func `receivers that are cancelled while they are woken lose no value`(event: Event) async throws {
    let (rounds, size, iterators, values) = (stress.rounds(5_000), 50, 4, 3)
    let (received, dropped, started, asked) = (Total(), Total(), Total(), Total())
    let queues = queues(3)
    var sent = 0
    for _ in 0..<max(1, rounds / size) {
      let channels = (0..<size).map { _ in Channel<Int>(.unbounded) { dropped.add($0) } }
      for channel in channels {
        for value in 1...values where channel.trySend(value) == .sent { sent += value }
      }
      let batches = channels.map { channel in
        co_launch(on: queues[0]) { received.add(try channel.receive(count: values + 1).reduce(0, +)) }
      }
      while channels.contains(where: { $0.count > 0 }) { await Task.yield() }
      let tasks = channels.map { channel in
        (0..<iterators).map { _ in
          Task {
            started.add(1)
            for try await value in channel { received.add(value) }
          }
        }
      }
      asked.add(size * iterators)
      while started.value < asked.value { await Task.yield() }
      let walks = [
        co_launch(on: queues[0]) { if event != .close { for batch in batches { batch.cancel() } } },
        co_launch(on: queues[1]) { if event != .putBack { for channel in channels { channel.close() } } },
        co_launch(on: queues[2]) { for group in tasks { for task in group { task.cancel() } } },
      ]
      for walk in walks { try await walk.value }
      for task in tasks.joined() { _ = await task.result }
      for channel in channels { channel.close() }
      for batch in batches { _ = try? await batch.value }
      for channel in channels { channel.cancel() }
      #expect(sent == received.value + dropped.value, "\(stress.replay)")
    }
  }
}
