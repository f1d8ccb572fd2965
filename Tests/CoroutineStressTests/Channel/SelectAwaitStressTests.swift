import Coroutine
import Dispatch
import Testing

@Suite("Stress: select on promises and jobs", .timeLimit(.minutes(10)))
struct SelectAwaitStressTests {
  /// All of them use the waiter queue of one promise or job at once; ThreadSanitizer checks that they do so under its
  /// lock only.
  @Test func `selects, waits, handlers and the settling of one promise meet without a race`() async throws {
    let stress = Stress()
    let queues = queues(3)
    for round in 0..<stress.rounds(500) {
      let promise = Promise<Int>()
      let job = co_launch(on: queues[0]) { try co_await(promise) }
      let selecting = queues.map { queue in
        co_launch(on: queue) { () throws -> Int in
          for _ in 0..<10 {
            let found = try co_select {
              promise.onAwait { try $0.get() }
              job.onAwait { try $0.get() }
              SelectCase.otherwise { -1 }
            }
            if found >= 0 { break }
            try co_yield()
          }
          return try co_select {
            promise.onAwait { try $0.get() }
            job.onAwait { try $0.get() }
          }
        }
      }
      let joining = co_launch { try job.join() }
      let handled = promise.then { $0 }
      co_launch { promise.fulfill(round) }
      for job in selecting + [joining] { #expect(try await job.value == round) }
      #expect(try await co_launch { try co_await(handled) }.value == round)
    }
  }
}
