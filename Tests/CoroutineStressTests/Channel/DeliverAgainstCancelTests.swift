import Coroutine
import Dispatch
import Testing

@Suite("Stress: deliver against cancel", .timeLimit(.minutes(10)))
struct DeliverAgainstCancelTests {
  private let stress = Stress()

  enum Way: CaseIterable, Sendable { case plain, select, trySend, count }

  /// Sender, receiver and canceller are on three queues and act at the same instant.
  ///
  /// Whatever wins, each value is received once or reaches the hook once. Rounds run in batches: one side of each round
  /// waits already, and the other sides start one after another. Some rounds cancel before that start, so that values
  /// are dropped however slow the canceller is; some at the instant of it, some later.
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
        let receiver = { (index: Int) in
          co_launch(on: queues[1]) {
            started.add(1)
            try receive(from: channels[index], way, received)
          }
        }
        let sender = { (index: Int) in
          co_launch(on: queues[2]) {
            started.add(1)
            try send(batch * size + index + 1, to: channels[index], way, sent)
          }
        }
        let receiverIsEarly = batch & 1 == 0
        let awaited = started.value + size
        let early = channels.indices.map(receiverIsEarly ? receiver : sender)
        while started.value < awaited { try co_yield() }
        let plans = channels.indices.map { _ in Plan(numbers.next()) }
        let late = channels.indices.map { index in
          if plans[index].moment == .before, plans[index].cancelsEarly { early[index].cancel() }
          let late = (receiverIsEarly ? sender : receiver)(index)
          if plans[index].moment == .atOnce { plans[index].cancel(early[index], late) }
          return late
        }
        for (index, plan) in plans.enumerated() where plan.moment != .atOnce {
          for _ in 0..<plan.pause { _ = started.value }
          plan.cancel(early[index], late[index])
        }
        for (index, channel) in channels.enumerated() {
          // Nothing is cancelled: let the value arrive.
          if plans[index].cancelsNone { _ = try? (receiverIsEarly ? late : early)[index].join() }
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

/// Which sides of a round are cancelled, and when.
private struct Plan {
  enum Moment { case before, atOnce, later }

  let cancelsEarly: Bool
  let cancelsLate: Bool
  let moment: Moment
  let pause: UInt64

  var cancelsNone: Bool { !cancelsEarly && !cancelsLate }

  init(_ bits: UInt64) {
    cancelsEarly = bits & 1 != 0
    cancelsLate = bits & 2 != 0
    moment = [.before, .atOnce, .later, .later][Int(bits >> 2 & 3)]
    pause = bits >> 4 & 31
  }

  func cancel(_ early: Job<Void>, _ late: Job<Void>) {
    if cancelsEarly { early.cancel() }
    if cancelsLate { late.cancel() }
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
    } catch is ChannelClosedError {
      // The case was selected: the value went to the hook.
      sent.add(value)
    }
  }
}
