import Dispatch
import Testing

@testable import Coroutine

/// Handlers run between the coroutines of a queue, and must not keep it to themselves.
@Suite(.timeLimit(.minutes(10)))
struct HandlerPacingTests {
  @Test func `handlers that always add handlers give the queue back`() async throws {
    let queue = DispatchQueue(label: "handlers")
    let isOver = Locked(false)
    try await onCoroutine(on: queue) { breed(until: isOver) }
    // Another block must run, or this never returns.
    try await onOwnThread { queue.sync { isOver.withLock { $0 = true } } }
  }

  // What a busy queue lets run is a matter of its time slice.
  @Test(.tags(.realClock)) func `handlers that always add handlers let the delays of the queue end`() async throws {
    let queue = DispatchQueue(label: "handlers")
    let isOver = Locked(false)
    try await onCoroutine(on: queue) {
      breed(until: isOver)
      try co_delay(.milliseconds(1))
      isOver.withLock { $0 = true }
    }
  }

  @Test func `a ready coroutine does not wait for a thousand handlers that are queued before it`() async throws {
    try await onCoroutine(on: DispatchQueue(label: "handlers")) {
      let ran = Locked(0)
      for _ in 0..<1_000 { _ = Promise<Void>.value(()).then { ran.withLock { $0 += 1 } } }
      try co_yield()
      // As many as the driver may run before it reads the clock.
      #expect((1..<1_000).contains(ran.current))
      while ran.current < 1_000 { try co_yield() }
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
