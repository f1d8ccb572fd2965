import Coroutine
import Dispatch
import Testing

@Suite("Stress: broadcast and watch", .timeLimit(.minutes(10)))
struct BroadcastStressTests {
  private let stress = Stress()

  enum Way: CaseIterable, Sendable { case plain, select, async, cancelled }

  /// Three queues send at once, and each receiver accounts for each value: seen, or told as missed.
  ///
  /// It sees the values of one sender in their order. Some receivers are cancelled all the time; some subscriptions
  /// come and go meanwhile.
  @Test(arguments: [1, 3, 64])
  func `each value is seen or missed once by each receiver`(capacity: Int) async throws {
    let (senders, each) = (3, stress.rounds(20_000, least: 100))
    let broadcast = Broadcast<Int>(capacity)
    let subscriptions = Way.allCases.map { way in (way, broadcast.subscribe()) }
    let receivers = subscriptions.map { way, subscription in
      co_launch(on: DispatchQueue(label: "receiver")) { try receiveAll(subscription, way, each) }
    }
    let comesAndGoes = co_launch(on: DispatchQueue(label: "comes and goes")) {
      while !broadcast.isClosed {
        let subscription = broadcast.subscribe()
        for _ in 0..<3 { _ = try? subscription.tryReceive() }
        try co_yield()
      }
    }
    let jobs = (0..<senders).map { sender in
      co_launch(on: DispatchQueue(label: "sender")) {
        for value in 0..<each {
          try broadcast.send(sender * each + value)
          if value % 16 == 0 { try co_yield() }
        }
      }
    }
    for job in jobs { try await job.value }
    broadcast.close()
    try await comesAndGoes.value
    for (receiver, way) in zip(receivers, Way.allCases) {
      #expect(try await receiver.value == senders * each, "\(way): \(stress.replay)")
    }
  }

  /// Updates on several queues count; receivers see a count that grows, and the last one at the end.
  @Test func `no update is lost, and the last value reaches each receiver`() async throws {
    let (updaters, each) = (3, stress.rounds(10_000, least: 100))
    let watch = Watch(0)
    let receivers = (0..<3).map { _ in
      let subscription = watch.subscribe()
      return co_launch(on: DispatchQueue(label: "receiver")) {
        var last = -1
        while let value = try subscription.receive() {
          if value <= last { throw Unordered(value: value, last: last) }
          last = value
        }
        return last
      }
    }
    let waits = co_launch { try watch.wait { $0 == updaters * each } }
    let jobs = (0..<updaters).map { _ in
      co_launch(on: DispatchQueue(label: "updater")) {
        for _ in 0..<each { try watch.update { $0 += 1 } }
      }
    }
    for job in jobs { try await job.value }
    #expect(try await waits.value == updaters * each)
    watch.close()
    for receiver in receivers { #expect(try await receiver.value == updaters * each, "\(stress.replay)") }
  }
}

private struct Unordered: Error {
  var value: Int
  var last: Int
}

/// Receives up to the end; returns the number of values that were seen or missed.
private func receiveAll(
  _ subscription: Subscription<Int>,
  _ way: BroadcastStressTests.Way,
  _ each: Int
) throws -> Int {
  var count = 0
  var last: [Int: Int] = [:]
  /// The cancellations since the last value.
  var cancelled = 0
  while true {
    do {
      guard let value = try next(subscription, way, cancelled) else { return count }
      let sender = value / each
      if let before = last[sender], before >= value { throw Unordered(value: value, last: before) }
      last[sender] = value
      count += 1
      cancelled = 0
    } catch let error as SubscriptionLaggedError {
      count += error.missed
    } catch let error as CancellationError {
      if co_isCancelled { throw error }
      cancelled += 1
    }
  }
}

/// Receives once.
///
/// A receive that is cancelled has the longer for it the more before it were cancelled in vain: with the
/// same time for each, all of them may be cancelled before they begin, for ever.
private func next(
  _ subscription: Subscription<Int>,
  _ way: BroadcastStressTests.Way,
  _ cancelled: Int
) throws -> Int? {
  switch way {
  case .plain: return try subscription.receive()
  case .select:
    let never = Channel<Int>()
    return try co_select {
      never.onReceive { $0 }
      subscription.onReceive { $0 }
    }
  case .async:
    return try co_await {
      var values = subscription.makeAsyncIterator()
      return try await values.next()
    }
  case .cancelled:
    let job = co_launch(on: .global()) { try subscription.receive() }
    for _ in 0...cancelled { try co_yield() }
    job.cancel()
    return try job.join()
  }
}
