import Coroutine
import Testing

/// Functions that may be called anywhere; those that throw notInCoroutine are in `WaitingVerbTests`.
@Suite("Outside a coroutine", .timeLimit(.minutes(10)))
struct OffCoroutineTests {
  @Test func `nothing is cancelled there`() {
    #expect(!co_isCancelled)
  }

  @Test func `nothing is cancelled there in a cancelled task either`() async {
    let task = Task {
      withUnsafeCurrentTask { $0?.cancel() }
      return co_isCancelled
    }
    #expect(await task.value == false)
  }

  @Test func `a shield just runs its body`() throws {
    #expect(co_shield { 3 } == 3)
    #expect(throws: Oops("body")) { try co_shield { throw Oops("body") } }
  }

  @Test func `launching, cancelling and settling need no coroutine`() async {
    let promise = Promise<Int>()
    let job = co_launch { try co_await(promise) }
    #expect(promise.fulfill(1))
    #expect(await asyncOutcome { try await job.value } == "1")
    job.cancel()
    #expect(await asyncOutcome { try await job.value } == "1")
  }

  @Test func `after a coroutine has run on it, a thread is a plain thread again`() async throws {
    let queue = taggedQueue("worker")
    for _ in 0..<20 {
      let gate = Gate()
      let parked = co_launch(on: queue) { try gate.pass() }
      let ended = co_launch(on: queue) {}
      try await ended.value
      let seen = try await onBlock(of: queue) { [outcome { try co_yield() }, "\(co_isCancelled)"] }
      #expect(seen == ["notInCoroutine", "false"])
      parked.cancel()
      _ = await asyncOutcome { try await parked.value }
    }
  }
}
