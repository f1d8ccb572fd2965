import Coroutine
import Dispatch
import Testing

/// A cancellation before the value ends the wait, however long the coroutine takes to notice.
@Suite("Cancellation before the value", .timeLimit(.minutes(10)))
struct CancelOrderTests {
  /// Parks a coroutine in `wait` on a queue that then sleeps, does `act` from outside, and lets the queue wake again.
  private func outcomeOf(
    _ wait: @escaping @Sendable () throws -> Int,
    whileAsleep act: (Job<String>) -> Void
  ) async throws -> String {
    let queue = taggedQueue("sleeper")
    let started = Gate()
    let job = co_launch(on: queue) {
      started.open()
      return outcome(wait)
    }
    try await onCoroutine { try started.pass() }
    // A block of the serial queue runs only when the coroutine has parked.
    try await onBlock(of: queue) {}
    queue.suspend()
    act(job)
    queue.resume()
    return try await job.value
  }

  @Test func `a promise that is fulfilled after the cancellation comes too late`() async throws {
    let promise = Promise<Int>()
    let seen = try await outcomeOf(
      { try co_await(promise) },
      whileAsleep: { job in
        job.cancel(Oops("first"))
        promise.fulfill(1)
      }
    )
    #expect(seen == "Oops(first)")
  }

  @Test func `a resumer that is used after the cancellation comes too late`() async throws {
    let kept = Locked<Resumer<Int>?>(nil)
    let seen = try await outcomeOf(
      { try co_suspend { kept.current = $0 } },
      whileAsleep: { job in
        job.cancel(Oops("first"))
        kept.current?.resume(1)
      }
    )
    #expect(seen == "Oops(first)")
  }

  @Test func `a job that ends after its joiner was cancelled comes too late`() async throws {
    let gate = Gate()
    let other = co_launch {
      try gate.pass()
      return 1
    }
    let seen = try await outcomeOf(
      { try other.join() },
      whileAsleep: { job in
        job.cancel(Oops("first"))
        gate.open()
      }
    )
    #expect(seen == "Oops(first)")
  }

  @Test func `a coroutine that gets many values and one cancellation has one outcome, the first`() async throws {
    let promises = (0..<3).map { _ in Promise<Int>() }
    let seen = try await outcomeOf(
      { try co_race(promises) },
      whileAsleep: { job in
        job.cancel(Oops("first"))
        for promise in promises { promise.fulfill(1) }
      }
    )
    #expect(seen == "Oops(first)")
  }
}
