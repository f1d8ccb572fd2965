import Coroutine
import Glibc
import Testing

// The code of the guide about stopping a program, compiled and run. See GuideSnippets.swift.

/// For a program whose main function is async, or another library's: ends `work` in two steps at a signal.
private func untilSignal(_ numbers: [Int32], _ work: @escaping @Sendable () throws -> Void) async throws {
  let signals = co_signals(numbers)
  defer { signals.close() }
  try await co_launch(name: "main") {
    try co_scope { scope in
      let main = scope.launch(name: "work") { try work() }
      let isTold = try co_select {
        main.onAwait { _ in false }
        signals.onReceive { _ in true }
      }
      if isTold { scope.stop(within: .seconds(10)) }
    }
  }.value
}

@Suite("What the guide shows about stopping", .timeLimit(.minutes(10)))
struct GuideStopSnippets {
  struct Failure: Error {}

  @Test func `a signal stops work of an async program, and work may also end by itself`() async throws {
    let hasStopped = Locked(false)
    try await untilSignal([SIGWINCH]) {
      kill(getpid(), SIGWINCH)
      try co_await(co_stopping)
      hasStopped.withLock { $0 = co_isStopping }
    }
    #expect(hasStopped.withLock { $0 })
    try await untilSignal([SIGWINCH]) { try co_yield() }
    await #expect(throws: Failure.self) { try await untilSignal([SIGWINCH]) { throw Failure() } }
  }

  @Test(.inWorlds) func `a stop is told to what the scope has launched, and to nothing else`() throws {
    let flights = SingleFlight<String, Bool>()
    try co_scope { scope in
      let child = scope.launch {
        try co_await(co_stopping)
        let unscoped = try co_launch { co_isStopping }.join()
        let flight = try flights.run("key") { co_isStopping }
        let inner = try co_map([1], limit: 1) { _ in co_isStopping }
        return [co_isStopping, unscoped, flight] + inner
      }
      try settleWorld()
      scope.stop(within: .seconds(10))
      let heard = try child.join()
      #expect(heard == [true, false, false, true])
      #expect(!co_isStopping)
    }
  }
}
