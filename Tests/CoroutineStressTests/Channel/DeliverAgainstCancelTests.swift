import Coroutine
import Dispatch
import Testing

@Suite("Stress: deliver against cancel", .timeLimit(.minutes(5)))
struct DeliverAgainstCancelTests {
  private let stress = Stress()

  enum Way: CaseIterable, Sendable { case plain, select, trySend, count }

  /// Sender, receiver and canceller are on three queues and meet in the same instant.
  ///
  /// Whatever wins, each value is received once or reaches the hook once.
  @Test(arguments: Way.allCases)
  func `no value is lost or doubled`(way: Way) async throws {
    let rounds = stress.rounds(50_000)
    let (sent, received, dropped) = (Total(), Total(), Total())
    let started = Total()
    let queues = (0..<3).map { DispatchQueue(label: "deliver.\($0)") }
    let driver = co_launch(on: queues[0]) {
      var numbers = stress.random(0)
      for round in 1...rounds {
        let channel = Channel<Int>(.bounded(Int(numbers.next() & 1))) { dropped.add($0) }
        let receiver = co_launch(on: queues[1]) {
          started.add(1)
          try receive(from: channel, way, received)
        }
        let sender = co_launch(on: queues[2]) {
          started.add(1)
          try send(round, to: channel, way, sent)
        }
        // Both are on their way to each other; a few loads decide how far they come.
        while started.value < 2 * round { try co_yield() }
        for _ in 0..<(numbers.next() & 63) { _ = started.value }
        let victims = numbers.next() & 3
        if victims & 1 != 0 { receiver.cancel() }
        if victims & 2 != 0 { sender.cancel() }
        // Nobody is cancelled: let the value arrive.
        if victims == 0 { _ = try? sender.join() }
        channel.close()
        _ = try? receiver.join()
        _ = try? sender.join()
      }
    }
    try await driver.value
    // The buffers' rests reach the hook with the channels' ends, on whichever queue let go last.
    for queue in queues { try await co_launch(on: queue) {}.value }
    #expect(sent.value == received.value + dropped.value, "\(stress.replay)")
    #expect(received.value > 0 && dropped.value > 0, "both ends happen: \(stress.replay)")
  }
}

private func receive(from channel: Channel<Int>, _ way: DeliverAgainstCancelTests.Way, _ received: Total) throws {
  switch way {
  case .plain, .trySend: received.add(try channel.receive() ?? 0)
  case .count: received.add(try channel.receive(count: 2).reduce(0, +))
  case .select:
    let never = Channel<Int>()
    try co_select {
      never.onReceive { _ in }
      channel.onReceive { received.add($0 ?? 0) }
    }
  }
}

/// What is counted as sent is what the channel must account for.
private func send(_ value: Int, to channel: Channel<Int>, _ way: DeliverAgainstCancelTests.Way, _ sent: Total) throws {
  switch way {
  case .plain, .count:
    sent.add(value)
    try channel.send(value)
  case .trySend:
    if channel.trySend(value) == .sent { sent.add(value) }
  case .select:
    let never = Channel<Int>()
    do {
      try co_select {
        never.onReceive { _ in }
        channel.onSend(value) { sent.add(value) }
      }
    } catch is ChannelClosed {
      // The case had committed: the value went to the hook.
      sent.add(value)
    }
  }
}
