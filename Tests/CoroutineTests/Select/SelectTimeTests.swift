import CoroutineTesting
import Testing

@testable import Coroutine

@Suite("co_select: time", .timeLimit(.minutes(10)))
struct SelectTimeTests {
  @Test func `in virtual time a timeout ends the select to the nanosecond, unless another case comes first`()
    async throws
  {
    let seen = try await onOwnThread {
      let simulation = Simulation()
      let started = simulation.now
      return try simulation.run {
        let channel = Channel<Int>()
        var seen: [String] = []
        for (delay, timeout) in [(2, 3_600), (3_600, 2)] {
          let sender = co_launch {
            try co_delay(.seconds(delay))
            return channel.trySend(delay)
          }
          let which = try co_select {
            channel.onReceive { "received \($0 ?? -1)" }
            SelectCase.onTimeout(.seconds(timeout)) { "timeout" }
            SelectCase.onTimeout(.seconds(7_200)) { "never" }
          }
          seen.append("\(which) at \((simulation.now - started) / 1_000_000_000)")
          seen.append("\(try sender.join())")
        }
        return seen
      }
    }
    #expect(seen == ["received 2 at 2", "sent", "timeout at 4", "full"])
  }

  @Test func `a timeout of a select that another case ends leaves no timer behind`() async throws {
    let queue = taggedQueue("timers")
    let seen = try await onCoroutine(on: queue) {
      let channel = Channel<Int>()
      co_launch { try channel.send(1) }
      let value = try co_select {
        channel.onReceive { $0 ?? 0 }
        SelectCase.onTimeout(.seconds(3_600)) { 2 }
      }
      let scheduler = QueueHost.scheduler(for: queue)
      return [value, scheduler.timerLock.withLock { scheduler.wheel.count }]
    }
    #expect(seen == [1, 0])
  }

  @Test(.inWorlds) func `a timeout at an instant is not put off by the rounds of a loop`() throws {
    let ticks = Channel<Int>()
    let sender = co_launch {
      for tick in 0... {
        try co_delay(.seconds(2))
        try ticks.send(tick)
      }
    }
    let end = co_now + .seconds(7)
    var seen: [Int?] = []
    repeat {
      seen.append(
        try co_select {
          ticks.onReceive { $0 }
            .onTimeout(until: end) { nil }
        }
      )
    } while seen.last != .some(nil)
    #expect(seen == [0, 1, 2, nil] && co_now == end)
    #expect(try co_select { ticks.onReceive { _ in 1 }.onTimeout(until: end) { 2 } } == 2, "it has passed")
    let cases: [SelectCase<Int>] = [.onTimeout(until: co_now + .seconds(1)) { 3 }]
    #expect(try co_select { cases } == 3)
    sender.cancel()
  }

  @Test func `a seed decides which ready case wins, and replays it`() async throws {
    let choices = { (seed: UInt64?) in
      try await onOwnThread {
        try Simulation(seed: seed).run {
          let (left, right) = (Channel<Int>(1), Channel<Int>(1))
          return try (0..<64).map { _ in
            _ = left.trySend(0)
            _ = right.trySend(1)
            return try co_select {
              left.onReceive { $0 ?? -1 }
              right.onReceive { $0 ?? -1 }
            }
          }
        }
      }
    }
    let first = try await choices(1)
    #expect(first == (try await choices(1)))
    #expect(first != (try await choices(2)))
    #expect(Set(first) == [0, 1])
    #expect(try await choices(nil) == Array(repeating: 0, count: 64))
  }

  @Test func `a select that nothing can end is a deadlock in a simulation`() async throws {
    try await onOwnThread {
      let simulation = Simulation()
      let error = #expect(throws: World.DeadlockError.self) {
        try simulation.run { try co_select { Channel<Int>().onReceive { _ in } } }
      }
      #expect(error?.dump.contains("waiting in a select (1 case: receive from Channel<Int> 0x") == true)
    }
  }

  @Test func `an enclosing deadline ends a select, and is distinguished from its own timeout`() async throws {
    let ends = try await onOwnThread {
      try Simulation().run {
        outcome {
          try co_timeout(.seconds(1)) {
            try co_select {
              Channel<Int>().onReceive { _ in "received" }
              SelectCase.onTimeout(.seconds(2)) { "timeout" }
            }
          }
        }
      }
    }
    #expect(ends == "TimeoutError")
  }

  @Test func `adjacent cases form a table, so that a select of them copies nothing`() {
    #expect(SelectCase<Int>._isFlat)
    #expect(_SelectPair<Int, SelectCase<Int>, SelectCase<Int>>._isFlat)
    #expect(MemoryLayout<SelectCase<Int>>.stride * 8 <= 1024)
    #expect(MemoryLayout<SelectWaiter>.stride * 8 <= 1024)
  }
}
