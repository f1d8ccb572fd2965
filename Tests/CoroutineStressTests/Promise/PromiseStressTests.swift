import Coroutine
import Dispatch
import Testing

@Suite("Stress: promises", .timeLimit(.minutes(10)))
struct PromiseStressTests {
  @Test func `if threads settle at once, one of them wins, and every waiter gets its outcome`() async throws {
    let stress = Stress()
    let threads = 3
    let objects = Census()
    for round in 0..<stress.rounds(1_500) {
      let promise = Promise<Box>()
      let won = (0..<threads).map { _ in Census() }
      let waiters = (0..<8).map { _ in co_launch { try co_await(promise).thread } }
      let handled = Census()
      let mapped = (0..<4).map { _ in
        promise.then { box in
          handled.change()
          return box.thread
        }
      }
      try await onThreads(threads) { thread in
        if promise.fulfill(Box(thread: thread, object: objects.citizen())) { won[thread].change() }
      }
      let winner = try #require(won.firstIndex { $0.now == 1 }, "\(stress.replay)")
      #expect(won.reduce(0) { $0 + $1.now } == 1, "\(stress.replay)")
      for waiter in waiters { #expect(try await waiter.value == winner, "round \(round), \(stress.replay)") }
      let values = try await co_launch { try co_all(mapped) }.value
      #expect(values == Array(repeating: winner, count: 4), "\(stress.replay)")
      #expect(handled.now == 4, "\(stress.replay)")
    }
    await until(objects, shows: 0)
  }

  private struct Box: Sendable {
    var thread: Int
    var object: Census.Citizen
  }

  @Test func `each waiter is either served or cancelled if both happen at once`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(1_000) {
      var random = stress.random(round)
      let promise = Promise<Int>()
      let waiters = (0..<20).map { _ in co_launch { try co_await(promise) } }
      let quitting = waiters.indices.filter { _ in Bool.random(using: &random) }
      try await onThreads(2) { thread in
        if thread == 0 {
          promise.fulfill(round)
        } else {
          for n in quitting { waiters[n].cancel(Mark(number: n)) }
        }
      }
      for (n, waiter) in waiters.enumerated() {
        do {
          #expect(try await waiter.value == round, "\(stress.replay)")
        } catch {
          #expect(quitting.contains(n) && error as? Mark == Mark(number: n), "\(error), \(stress.replay)")
        }
      }
    }
  }
}
