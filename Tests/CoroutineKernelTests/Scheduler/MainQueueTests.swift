import Coroutine
import Dispatch
import Testing

private let key = DispatchSpecificKey<Bool>()

/// The main queue under `dispatchMain`, as in a test process: it gives the main thread up, and any thread serves the
/// queue.
///
/// The consumer's program tests the main queue under a run loop, where it is the main thread.
@Suite("The main queue", .timeLimit(.minutes(10)))
struct MainQueueTests {
  // In a world every queue runs on the world's thread.
  @Test(.tags(.realClock)) func `runs coroutines, before and after each kind of wait`() async throws {
    DispatchQueue.main.setSpecific(key: key, value: true)
    defer { DispatchQueue.main.setSpecific(key: key, value: nil) }
    let seen = try await onCoroutine(on: .main) {
      var seen = [DispatchQueue.getSpecific(key: key)]
      try co_delay(.milliseconds(1))
      seen.append(DispatchQueue.getSpecific(key: key))
      try co_yield()
      seen.append(DispatchQueue.getSpecific(key: key))
      _ = try co_blocking { 1 }
      seen.append(DispatchQueue.getSpecific(key: key))
      try co_switch(to: taggedQueue("elsewhere"))
      seen.append(DispatchQueue.getSpecific(key: key))
      try co_switch(to: .main)
      return seen + [DispatchQueue.getSpecific(key: key)]
    }
    #expect(seen == [true, true, true, true, nil, true])
  }

  /// Without `sending` the closure would be the main actor's, and its first instruction would check that and trap.
  @Test @MainActor func `a body that is formed on the main actor runs on another queue`() async throws {
    let queue = taggedQueue("elsewhere")
    let job = co_launch(on: queue) {
      dispatchPrecondition(condition: .onQueue(queue))
      return try co_blocking { 7 }
    }
    #expect(try await job.value == 7)
  }

  @Test func `is shared with the main actor's code and plain blocks, which run one at a time`() async throws {
    let count = UnsafeCell()
    let jobs = (0..<4).map { _ in
      co_launch(on: .main) {
        for _ in 0..<100 {
          count.increment()
          try co_yield()
        }
      }
    }
    for _ in 0..<100 { await MainActor.run { count.increment() } }
    for _ in 0..<100 { DispatchQueue.main.async { count.increment() } }
    for job in jobs { try await job.value }
    try await onBlock(of: .main) {}
    #expect(count.count == 600)
  }
}
