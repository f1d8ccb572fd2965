import Dispatch
import Foundation
import Testing

@testable import Coroutine

/// Faults of a server that show in numbers, or at a stop: what the tools say about each.
///
/// Each in a process of its own, because the tools look at the whole process.
@Suite("Faults of a server under load, and at its stop", .timeLimit(.minutes(10)))
struct FaultsUnderLoadTests {
  /// Dumps by stacks until `isMatch` is true of one, and returns it.
  private static func dump(where isMatch: (String) -> Bool) -> String {
    while true {
      let text = CoroutineRuntime.dump(.stacks)
      if isMatch(text) { return text }
      sched_yield()
    }
  }

  @Test(.tags(.realClock))
  func `11. a consumer that is too slow: its channel is full, and its stack is where it waits`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      Faults().fallBehind()
      // A coroutine that is about to leave its stack is shown without one.
      let text = Self.dump {
        $0.contains("1000 of 1000 values buffered") && $0.contains("for a delay")
          && (isSanitized || $0.contains("Faults.store("))
      }
      let groups = text.components(separatedBy: "\n\n")
      let sender = groups.first { $0.contains(" to send (Channel<Int> 0x") }
      #expect(sender?.contains("\"take orders\"") == true, "\(text)")
      let consumer = groups.first { $0.contains("for a delay") }
      #expect(consumer?.contains("\"store\"") == true, "\(text)")
      #expect(isSanitized || consumer?.contains("Faults.store(") == true, "\(text)")
    }
  }

  @Test func `12. calls that are repeated at once: no coroutine waits, and the switches are counted`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      Faults().repeatAtOnce { throw CancellationError() }
      let text = Self.dump { $0.contains("ready, longest") && $0.contains("callUntilItWorks") || isSanitized }
      #expect(text.contains("\"call ") && !text.contains(" waiting, "), "\(text)")
      let first = CoroutineRuntime.metrics.switches
      while CoroutineRuntime.metrics.switches < first + 100_000 { sched_yield() }
    }
  }

  @Test(.tags(.realClock)) func `13. a cancellation that is swallowed: a coroutine runs on, and is cancelled`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let refreshes = Flag()
      let job = Faults().swallowTheCancellation { refreshes.raise() }
      settle(1)
      job.cancel()
      let list = { CoroutineRuntime.dump(.list) }
      var text = list()
      while !refreshes.isRaised || !text.contains(#/"refresh prices" running .*cancelled on /#) { text = list() }
    }
  }

  @Test func `14. a queue that is flooded: many have not started, and one keeps the queue`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let isOver = Flag()
      Faults().floodAQueue { _ in while !isOver.isRaised {} }
      let text = Self.dump { $0.contains("4999 not started, longest ") }
      #expect(text.contains("\n1 running, ") && text.contains("\"index\" on server.index"), "\(text)")
      isOver.raise()
    }
  }

  @Test func `15. actors that ask each other are a circle`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      Faults().askEachOther()
      var circles = CoroutineRuntime.deadlocks()
      while circles.isEmpty {
        sched_yield()
        circles = CoroutineRuntime.deadlocks()
      }
      #expect(Set(circles[0].compactMap(\.name)) == ["accounts", "ledger"], "\(circles)")
      let text = CoroutineRuntime.dump(.list)
      #expect(text.contains(#/"accounts" waiting for an answer \(from actor #\d+ "ledger"\)/#), "\(text)")
      #expect(text.contains(#/"audit" waiting for an answer \(from actor #\d+ "accounts"\)/#), "\(text)")
    }
  }

  @Test func `16. a stop that waits under a shield: what still waits is cancelled`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let job = Faults().flushAtTheEnd(Promise<Void>())
      settle(1)
      job.cancel()
      let text = CoroutineRuntime.dump(.stacks)
      #expect(text.contains(#/\n1 waiting, \d+ ms, for a promise \(Promise<\(\)> .*\), 1 cancelled\n/#), "\(text)")
      #expect(text.contains("\"flush\" on server.requests"), "\(text)")
    }
  }
}
