import Dispatch
import Testing

@testable import Coroutine

/// Handlers run between the coroutines of a queue, and must not keep it to themselves.
@Suite(.timeLimit(.minutes(1)))
struct HandlerPacingTests {
  @Test func `handlers that always add handlers give the queue back`() async throws {
    let queue = DispatchQueue(label: "handlers")
    let isOver = Locked(false)
    try await onCoroutine(on: queue) { breed(until: isOver) }
    // Another block must run, or this never returns.
    try await onOwnThread { queue.sync { isOver.withLock { $0 = true } } }
  }

  @Test func `handlers that always add handlers let the delays of the queue end`() async throws {
    let queue = DispatchQueue(label: "handlers")
    let isOver = Locked(false)
    try await onCoroutine(on: queue) {
      breed(until: isOver)
      try co_delay(.milliseconds(1))
      isOver.withLock { $0 = true }
    }
  }

  @Test func `a handler attached at the end of a queue's last coroutine is delivered`() async throws {
    for _ in 0..<100 {
      let pending = Promise<Int>()
      let seen = Promise<Int>()
      let job = co_launch(on: DispatchQueue(label: "last")) {}
      job.finally { _ = pending.then { _ = seen.fulfill($0) } }
      try await job.value
      pending.fulfill(7)
      #expect(try await seen.value == 7)
    }
  }
}

private func breed(until isOver: Locked<Bool>) {
  guard !isOver.current else { return }
  _ = Promise<Void>.value(()).then { breed(until: isOver) }
}
