import Coroutine
import Dispatch
import Testing

@Suite("Stress: deliver against cancel", .timeLimit(.minutes(5)))
struct DeliverAgainstCancelTests {
  private let stress = Stress()

  enum Way: CaseIterable, Sendable { case plain, select, trySend, count }

  /// Sender, receiver and canceller are on three queues and act at the same instant.
  ///
  /// Whatever wins, each value is received once or reaches the hook once. Rounds run in batches: one side of each round
  /// waits already; while one queue starts the other sides, one after another, a second queue cancels some, in the same
  /// order.
  @Test(arguments: Way.allCases)
  func `no value is lost or doubled`(way: Way) async throws {
    let (rounds, size) = (stress.rounds(50_000), 100)
    let (sent, received, dropped) = (Total(), Total(), Total())
    let started = Total()
    let queues = (0..<3).map { DispatchQueue(label: "deliver.\($0)") }
    let driver = co_launch(on: queues[0]) {
      var numbers = stress.random(0)
      for batch in 0..<max(1, rounds / size) {
        let channels = (0..<size).map { _ in Channel<Int>(.bounded(Int(numbers.next() & 1))) { dropped.add($0) } }
        let receivers = {
          channels.map { channel in
            co_launch(on: queues[1]) {
              started.add(1)
              try receive(from: channel, way, received)
            }
          }
        }
        let senders = {
          channels.enumerated().map { index, channel in
            co_launch(on: queues[2]) {
              started.add(1)
              try send(batch * size + index + 1, to: channel, way, sent)
            }
          }
        }
        let awaited = started.value + size
        let early = batch & 1 == 0 ? receivers() : senders()
        while started.value < awaited { try co_yield() }
        let late = batch & 1 == 0 ? senders() : receivers()
        let victims = channels.indices.map { index in
          let victims = numbers.next() & 3
          for _ in 0..<(numbers.next() & 31) { _ = started.value }
          if victims & 1 != 0 { early[index].cancel() }
          if victims & 2 != 0 { late[index].cancel() }
          return victims
        }
        for (index, channel) in channels.enumerated() {
          // Nothing is cancelled: let the value arrive.
          if victims[index] == 0 { _ = try? (batch & 1 == 0 ? late : early)[index].join() }
          channel.close()
          _ = try? early[index].join()
          _ = try? late[index].join()
        }
      }
    }
    try await driver.value
    // The remaining buffered values reach the hook at the channels' ends, on the queue of the last release.
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

/// The channel must account for every value that is counted as sent.
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
      // The case was selected: the value went to the hook.
      sent.add(value)
    }
  }
}
