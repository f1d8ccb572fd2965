import CoroutineTesting
import Testing

@testable import Coroutine

@Suite("Watch", .timeLimit(.minutes(10)))
struct WatchTests {
  /// Not Equatable.
  private struct Settings: Sendable {
    var level = 0
    var names: [String] = []
  }

  @Test(.inWorlds, arguments: SubscriptionRoute.allCases)
  func `a receiver gets the value of the moment, then the newest after each change`(route: SubscriptionRoute) throws {
    let watch = Watch(1)
    let subscription = watch.subscribe()
    #expect(try route.next(subscription) == "1")
    for value in 2...5 { try watch.send(value) }
    #expect(try route.next(subscription) == "5", "changes in between are passed over")
    try watch.send(6)
    #expect(watch.close() && !watch.close() && watch.isClosed && watch.value == 6)
    #expect(try route.next(subscription) == "6")
    #expect(try route.next(subscription) == "end")
    let late = watch.subscribe()
    #expect(try route.next(late) == "6")
    #expect(try route.next(late) == "end")
  }

  @Test(.inWorlds, arguments: [SubscriptionRoute.receive, .select, .task])
  func `a receiver that is woken sees the newest value, not the one that woke it`(route: SubscriptionRoute) throws {
    let watch = Watch(0)
    let subscriptions = (0..<3).map { _ in watch.subscribe() }
    let jobs = subscriptions.map { subscription in
      co_launch {
        #expect(try route.next(subscription) == "0")
        return try route.next(subscription)
      }
    }
    try settleWorld()
    // All run later than this: no wait is between the sends.
    for value in 1...3 { try watch.send(value) }
    for job in jobs { #expect(try job.join() == "3") }
    for subscription in subscriptions {
      if case .empty = try subscription.tryReceive() {} else { Issue.record("it has seen that value") }
    }
  }

  @Test(.inWorlds) func `it waits until the value is as wanted`() throws {
    let watch = Watch(Settings())
    let job = co_launch { try watch.wait { $0.level >= 2 }.names }
    try settleWorld()
    #expect(
      try watch.update {
        $0.level += 1
        return $0.level
      } == 1
    )
    try settleWorld()
    #expect(!job.isFinished)
    try watch.update {
      $0.level += 1
      $0.names.append("two")
    }
    #expect(try job.join() == ["two"])
    #expect(try watch.wait { $0.level == 2 }.level == 2, "at once")
    #expect(outcome { try watch.wait { _ in throw Oops("asked") } } == "Oops(asked)")
    #expect(outcome { try co_timeout(.seconds(1)) { try watch.wait { $0.level > 2 } } } == "TimeoutError")
    let ends = co_launch { outcome { try watch.wait { $0.level > 2 } } }
    try settleWorld()
    watch.close()
    #expect(try ends.join() == "ChannelClosedError")
    #expect(try watch.wait { $0.level == 2 }.level == 2, "the last value stays")
    let failed = Watch(1)
    failed.close(Oops("broken"))
    #expect(outcome { try failed.wait { $0 > 1 } } == "Oops(broken)")
  }

  @Test(.inWorlds) func `a cancelled wait throws its reason, and on entry`() throws {
    let watch = Watch(0)
    let job = co_launch { outcome { try watch.wait { $0 > 0 } } }
    try settleWorld()
    job.cancel(Oops("enough"))
    try watch.send(1)
    #expect(try job.join() == "Oops(enough)")
    let late = co_launch {
      _ = outcome { try waitForCancellation() }
      return outcome { try watch.wait { _ in true } }
    }
    try settleWorld()
    late.cancel()
    #expect(try late.join() == "CancellationError")
  }

  @Test(.inWorlds) func `updates are steps of their own, however many come at once`() throws {
    let watch = Watch(0)
    let jobs = (0..<4).map { _ in
      co_launch {
        for _ in 0..<10 {
          try watch.update { value in
            co_point()
            value += 1
          }
        }
      }
    }
    for job in jobs { try job.join() }
    #expect(watch.value == 40)
    #expect(
      outcome {
        try watch.update {
          $0 = 7
          throw Oops("no")
        }
      } == "Oops(no)"
    )
    #expect(watch.value == 40)
    watch.close(Oops("over"))
    let error = #expect(throws: ChannelClosedError.self) { try watch.update { $0 += 1 } }
    #expect(error?.cause is Oops && watch.value == 40)
    #expect(throws: ChannelClosedError.self) { try watch.send(1) }
  }

  @Test func `an old value is released by the change, and the newest with the watch`() async throws {
    let trace = Trace()
    var watch: Watch<Tracked>? = Watch(Tracked("first", trace))
    let subscription = watch?.subscribe()
    try watch?.send(Tracked("second", trace))
    #expect(trace.all == ["released first"])
    watch = nil
    #expect(trace.count == 1, "a subscription holds it")
    if case .received = try subscription?.tryReceive() {} else { Issue.record("nothing") }
    #expect(trace.count == 1)
    withExtendedLifetime(subscription) {}
  }

  @Test func `any thread reads, sends and updates`() async throws {
    let watch = Watch(0)
    let job = co_launch { try watch.wait { $0 == 3 } }
    try await onOwnThread { try watch.send(1) }
    try await Task { try watch.update { $0 += 1 } }.value
    #expect(try await onOwnThread { watch.value } == 2)
    try await onCoroutine { try co_blocking { try watch.update { $0 += 1 } } }
    #expect(try await job.value == 3)
    #expect(outcome { try watch.wait { $0 == 3 } } == "notInCoroutine")
    var seen: [Int] = []
    watch.close()
    for try await value in watch.subscribe() { seen.append(value) }
    #expect(seen == [3])
  }

  @Test func `a wait that nothing can end is a deadlock in a world, and names the watch`() async throws {
    let (wait, select) = try await onOwnThread {
      let dumps = Trace()
      for waits in [true, false] {
        let error = #expect(throws: World.DeadlockError.self) {
          try World().run {
            let watch = Watch(1).named("level")
            let subscription = watch.subscribe()
            _ = try subscription.receive()
            if waits { _ = try watch.wait { $0 > 1 } } else { try co_select { subscription.onReceive { _ in } } }
          }
        }
        dumps(error?.dump ?? "")
      }
      return (dumps.all[0], dumps.all[1])
    }
    #expect(wait.contains("waiting for a change (Watch<Int> \"level\" 0x"))
    #expect(wait.contains(", 2 subscriptions)"))
    #expect(select.contains("waiting in a select (1 case: wait for a change of Watch<Int> \"level\" 0x"))
  }
}
