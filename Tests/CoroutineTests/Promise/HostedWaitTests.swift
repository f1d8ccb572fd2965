import Testing

@testable import Coroutine

@Suite("Promise: blockingWait, and the loop that a handler needs", .timeLimit(.minutes(10)))
struct HostedWaitTests {
  /// A loop that calls code of the program where it is asked whether the calling thread is its own.
  private final class AskedLoop: CoroutineHost {
    let loop = Loop()
    let whenAsked = Locked<@Sendable () -> Void>({})

    var coroutineLabel: String { loop.coroutineLabel }
    var isCurrentForCoroutines: Bool {
      whenAsked.current()
      return loop.isCurrentForCoroutines
    }
    func submit(_ drain: HostedDrain) { loop.submit(drain) }
    func schedule(_ drain: HostedDrain, after delay: Duration) { loop.schedule(drain, after: delay) }
    func unschedule() { loop.unschedule() }
  }

  // In a process of its own, because debug builds end it where that code takes a lock under a spin lock.
  @Test func `the loop is asked outside of the locks of promises`() async {
    await #expect(processExitsWith: .success) {
      let (host, start, asked) = (AskedLoop(), Promise<Int>(), Trace())
      let result = try await co_launch(on: HostedScheduler(host)) { start.then { $0 + 1 }.then { $0 + 1 } }.value
      let link = Promise<Int>().then { $0 }
      host.whenAsked.current = {
        // A walk through the graph, and a promise on the way to the result.
        link.cancel()
        asked("\(start.isSettled)")
      }
      let value = try await onOwnThread {
        startThread {
          while asked.count == 0 {}
          start.fulfill(1)
        }
        return try result.blockingWait()
      }
      precondition(value == 3 && asked.all.first == "false")
    }
  }

  @Test func `on the thread of the loop it throws instead of blocking the handler`() async throws {
    let (host, start) = (AskedLoop(), Promise<Int>())
    let result = try await co_launch(on: HostedScheduler(host)) { start.then { $0 + 1 }.then { $0 + 1 } }.value
    let seen = Promise<String>()
    host.loop.execute { seen.fulfill(outcome { try result.blockingWait() }) }
    #expect(try await seen.value == "wouldDeadlock")
    start.fulfill(1)
    #expect(try await result.value == 3)
  }
}
