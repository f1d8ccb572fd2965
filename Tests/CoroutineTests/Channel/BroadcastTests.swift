import CoroutineTesting
import Testing

@testable import Coroutine

/// What a receive gives, as a text: the value, `missed N`, `end`, or the name of the error.
private func text(_ receive: () throws -> Int?) -> String {
  do {
    return try receive().map { "\($0)" } ?? "end"
  } catch let error as SubscriptionLaggedError {
    return "missed \(error.missed)"
  } catch {
    return name(of: error)
  }
}

/// The ways to receive: all give the same.
enum SubscriptionRoute: CaseIterable, Sendable {
  case receive, tryReceive, select, task

  func next(_ subscription: Subscription<Int>) throws -> String {
    switch self {
    case .receive: text { try subscription.receive() }
    case .select: text { try co_select { subscription.onReceive { $0 } } }
    case .task:
      try co_await {
        do {
          var values = subscription.makeAsyncIterator()
          return try await values.next().map { "\($0)" } ?? "end"
        } catch let error as SubscriptionLaggedError {
          return "missed \(error.missed)"
        } catch {
          return name(of: error)
        }
      }
    case .tryReceive:
      text {
        switch try subscription.tryReceive() {
        case .received(let value): return value
        case .closed: return nil
        case .empty: throw Oops("empty")
        }
      }
    }
  }
}

@Suite("Broadcast", .timeLimit(.minutes(10)))
struct BroadcastTests {
  /// What is received, up to the end, after a number of sends.
  struct Lag: Sendable, CustomTestStringConvertible {
    var capacity: Int
    var sends: Int
    var seen: [String]
    var testDescription: String { "\(sends) sends, capacity \(capacity)" }
  }

  private static let lags = [
    Lag(capacity: 1, sends: 0, seen: ["end"]),
    Lag(capacity: 1, sends: 1, seen: ["1", "end"]),
    Lag(capacity: 1, sends: 3, seen: ["missed 2", "3", "end"]),
    Lag(capacity: 3, sends: 3, seen: ["1", "2", "3", "end"]),
    Lag(capacity: 3, sends: 4, seen: ["missed 1", "2", "3", "4", "end"]),
    Lag(capacity: 3, sends: 100, seen: ["missed 97", "98", "99", "100", "end"]),
    Lag(capacity: .max, sends: 20, seen: (1...20).map { "\($0)" } + ["end"]),
  ]

  @Test(.inWorlds, arguments: SubscriptionRoute.allCases, lags)
  func `a receiver that is behind is told once what it has missed, and goes on`(
    route: SubscriptionRoute,
    lag: Lag
  ) throws {
    let broadcast = Broadcast<Int>(lag.capacity)
    let (slow, quick) = (broadcast.subscribe(), broadcast.subscribe())
    for value in stride(from: 1, through: lag.sends, by: 1) {
      #expect(try broadcast.send(value) == 2)
      #expect(try quick.receive() == value)
    }
    #expect(broadcast.close() && !broadcast.close() && broadcast.isClosed)
    var seen: [String] = []
    repeat { seen.append(try route.next(slow)) } while seen.last != "end" && seen.count < 200
    #expect(seen == lag.seen)
    #expect(try route.next(slow) == "end" && quick.receive() == nil)
  }

  @Test(.inWorlds, arguments: [SubscriptionRoute.receive, .select, .task])
  func `each receiver that waits gets each value, in the order of the sends`(route: SubscriptionRoute) throws {
    let broadcast = Broadcast<Int>(2)
    let jobs = (0..<3).map { _ in
      let subscription = broadcast.subscribe()
      return co_launch { try (0..<4).map { _ in try route.next(subscription) } }
    }
    for value in 1...3 {
      try settleWorld()
      #expect(try broadcast.send(value) == 3)
    }
    try settleWorld()
    broadcast.close(Oops("done"))
    for job in jobs { #expect(try job.join() == ["1", "2", "3", "Oops(done)"]) }
  }

  @Test(.inWorlds) func `a value goes to nothing that has not subscribed before`() throws {
    let broadcast = Broadcast<Int>(4)
    #expect(try broadcast.send(1) == 0)
    let first = broadcast.subscribe()
    #expect(try broadcast.send(2) == 1)
    let late = broadcast.subscribe()
    #expect(try broadcast.send(3) == 2)
    broadcast.close(Oops("over"))
    #expect(text { try first.receive() } == "2" && text { try first.receive() } == "3")
    #expect(text { try late.receive() } == "3" && text { try late.receive() } == "Oops(over)")
    let tooLate = broadcast.subscribe()
    #expect(text { try tooLate.receive() } == "Oops(over)")
    let error = #expect(throws: ChannelClosedError.self) { try broadcast.send(4) }
    #expect(error?.cause is Oops)
  }

  @Test(.inWorlds) func `coroutines that share a subscription share its values`() throws {
    let broadcast = Broadcast<Int>(8)
    let subscription = broadcast.subscribe()
    let jobs = (0..<3).map { _ in co_launch { try subscription.receive() } }
    try settleWorld()
    for value in 1...4 { try broadcast.send(value) }
    #expect(Set(try jobs.map { try $0.join() }) == [1, 2, 3])
    #expect(try subscription.receive() == 4)
  }

  @Test(.inWorlds) func `a cancelled receive and a deadline lose no value, and a delivered one stays`() throws {
    let broadcast = Broadcast<Int>(8)
    let subscription = broadcast.subscribe()
    let first = co_launch { text { try subscription.receive() } }
    try settleWorld()
    first.cancel(Oops("enough"))
    try broadcast.send(1)
    #expect(try first.join() == "Oops(enough)")
    #expect(try subscription.receive() == 1)
    #expect(text { try co_timeout(.seconds(1)) { try subscription.receive() } } == "TimeoutError")
    let second = co_launch { text { try subscription.receive() } }
    try settleWorld()
    try broadcast.send(2)
    second.cancel()
    #expect(try second.join() == "2")
    let task = co_launch { outcome { try co_await { try await subscription.makeAsyncIterator().collect() } } }
    try settleWorld()
    task.cancel()
    #expect(try task.join() == "CancellationError")
    try broadcast.send(3)
    #expect(try subscription.receive() == 3)
  }

  @Test(.inWorlds) func `a select commits one of its subscriptions, and the other stays behind`() throws {
    let (left, right) = (Broadcast<Int>(2), Broadcast<Int>(2))
    let (first, second) = (left.subscribe(), right.subscribe())
    let job = co_launch {
      try co_select {
        first.onReceive { "left \($0 ?? -1)" }
        second.onReceive { "right \($0 ?? -1)" }
      }
    }
    try settleWorld()
    try left.send(1)
    try right.send(2)
    #expect(try job.join() == "left 1")
    #expect(try co_select { second.onReceive { $0 } } == 2)
    #expect(try co_select { first.onReceive { $0 }.otherwise { -1 } } == -1)
    #expect(try co_select { first.onReceive { $0 }.onTimeout(.seconds(1)) { -2 } } == -2)
  }

  /// Larger than the words of a select, with references.
  private struct Large: Sendable, Equatable {
    var texts = (0..<9).map { "a text that is not inline \($0)" }
    var numbers: (Int, Int, Int, Int, Int, Int) = (1, 2, 3, 4, 5, 6)
    static func == (one: Large, other: Large) -> Bool { one.texts == other.texts }
  }

  @Test(.inWorlds) func `large values, and optional ones, arrive by every route`() throws {
    let large = Broadcast<Large>(2)
    let (waits, behind) = (large.subscribe(), large.subscribe())
    let job = co_launch { try co_select { waits.onReceive { $0 } } }
    try settleWorld()
    try large.send(Large())
    #expect(try job.join() == Large())
    #expect(try co_select { behind.onReceive { $0 } } == Large())
    let optional = Broadcast<Int?>(2)
    let values = optional.subscribe()
    try optional.send(nil)
    try optional.send(1)
    optional.close()
    #expect(try values.receive() == .some(.none))
    #expect(try values.receive() == .some(.some(1)))
    #expect(try values.receive() == nil)
  }

  @Test func `a value lives until the last subscription has taken it, was released, or has missed it`() async throws {
    let trace = Trace()
    try await onSerialQueue {
      let broadcast = Broadcast<Tracked>(2)
      try broadcast.send(Tracked("unseen", trace))
      #expect(trace.all == ["released unseen"])
      let reads = broadcast.subscribe()
      var released: Subscription<Tracked>? = broadcast.subscribe()
      try broadcast.send(Tracked("first", trace))
      _ = try reads.receive()
      #expect(trace.count == 1)
      try broadcast.send(Tracked("second", trace))
      try broadcast.send(Tracked("third", trace))
      #expect(trace.all.last == "released first", "the capacity is 2")
      _ = released
      released = nil
      #expect(trace.count == 2, "the reader has yet to take two")
      _ = try reads.receive()
      _ = try reads.receive()
      #expect(trace.all.suffix(2) == ["released second", "released third"])
      let waiter = broadcast.subscribe()
      let job = co_launch { _ = try waiter.receive() }
      let other = co_launch { _ = try reads.receive() }
      try co_yield()
      try broadcast.send(Tracked("handed over", trace))
      try job.join()
      try other.join()
      #expect(trace.all.last == "released handed over")
      withExtendedLifetime((waiter, reads)) {}
    }
  }

  @Test func `the memory of a burst goes back when the last value is taken`() async throws {
    try await onSerialQueue {
      let broadcast = Broadcast<[Int]>(.max)
      let subscription = broadcast.subscribe()
      for round in 0..<2 {
        for value in 0..<100_000 { try broadcast.send([value]) }
        for value in 0..<100_000 { #expect(try subscription.receive() == [value], "round \(round)") }
      }
      var other: Subscription<[Int]>? = broadcast.subscribe()
      for value in 0..<100_000 { try broadcast.send([value]) }
      _ = other
      other = nil
      for value in 0..<100_000 { #expect(try subscription.receive() == [value]) }
    }
  }

  @Test func `any thread sends, looks and closes`() async throws {
    let broadcast = Broadcast<Int>(4)
    let subscription = broadcast.subscribe()
    #expect(text { try subscription.receive() } == "notInCoroutine")
    let job = co_launch { try (0..<2).map { _ in try subscription.receive() } }
    _ = try await onOwnThread { try broadcast.send(1) }
    try await onCoroutine { try co_blocking { _ = try broadcast.send(2) } }
    #expect(try await job.value == [1, 2])
    _ = try await Task { try broadcast.send(3) }.value
    try await onOwnThread {
      if case .received(let value) = try subscription.tryReceive() { #expect(value == 3) } else { Issue.record("none") }
      if case .empty = try subscription.tryReceive() {} else { Issue.record("not empty") }
      broadcast.close()
      if case .closed = try subscription.tryReceive() {} else { Issue.record("not closed") }
    }
  }

  @Test func `an async loop that has missed values ends, and another one goes on`() async throws {
    let broadcast = Broadcast<Int>(2)
    let subscription = broadcast.subscribe()
    for value in 1...5 { try broadcast.send(value) }
    broadcast.close()
    var seen: [Int] = []
    let error = await #expect(throws: SubscriptionLaggedError.self) {
      for try await value in subscription { seen.append(value) }
    }
    #expect(error?.missed == 3 && seen.isEmpty)
    #expect("\(error!)" == "a subscription has missed 3 values; receive faster, or give the Broadcast more capacity")
    for try await value in subscription { seen.append(value) }
    #expect(seen == [4, 5])
  }

  @Test func `a wait that nothing can end is a deadlock in a world, and names the broadcast`() async throws {
    let (dumps, select) = try await onOwnThread {
      let dumps = Trace()
      for waits in [true, false] {
        let error = #expect(throws: World.DeadlockError.self) {
          try World().run {
            let broadcast = Broadcast<Int>(3).named("prices")
            let subscription = broadcast.subscribe()
            if waits { _ = try subscription.receive() } else { try co_select { subscription.onReceive { _ in } } }
            withExtendedLifetime(broadcast) {}
          }
        }
        dumps(error?.dump ?? "")
      }
      return (dumps.all[0], dumps.all[1])
    }
    #expect(dumps.contains("waiting to receive (Broadcast<Int> \"prices\" 0x"))
    #expect(dumps.contains(", 0 of 3 values kept, 1 subscription)"))
    #expect(select.contains("waiting in a select (1 case: receive from Broadcast<Int> \"prices\" 0x"))
  }

  @Test func `a capacity below 1 traps with a sentence`() async {
    let none = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = Broadcast<Int>(0)
    }
    #expect(none?.said("A Broadcast cannot keep 0 values: give it 1 or more, or its receivers would miss all.") == true)
    let negative = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = Broadcast<Int>(-1)
    }
    #expect(negative?.said("A Broadcast cannot keep -1 values") == true)
  }
}

extension Subscription.AsyncIterator where Element == Int {
  /// All values up to the end.
  fileprivate func collect() async throws -> [Int] {
    var (values, iterator): ([Int], Self) = ([], self)
    while let value = try await iterator.next() { values.append(value) }
    return values
  }
}
