import Coroutine
import Testing

/// The result of work elsewhere, which arrives once, on any thread.
final class Delivery: Awaitable {
  private struct State {
    var result: Result<Int, any Error>?
    var listeners: [Int: @Sendable (Result<Int, any Error>) -> Void] = [:]
    var lastNumber = 0
  }
  private let state = ThreadMutex(State())

  func observe(_ completion: @escaping @Sendable (Result<Int, any Error>) -> Void) -> AwaitableObservation {
    let (result, number) = state.withLock { state in
      state.lastNumber += 1
      if state.result == nil { state.listeners[state.lastNumber] = completion }
      return (state.result, state.lastNumber)
    }
    if let result { completion(result) }
    return AwaitableObservation { [state] in state.withLock { $0.listeners[number] = nil } }
  }

  func arrive(_ result: Result<Int, any Error>) {
    let listeners = state.withLock { state in
      if state.result == nil { state.result = result }
      defer { state.listeners = [:] }
      return Array(state.listeners.values)
    }
    for listener in listeners { listener(result) }
  }

  func cancelAwaited() { arrive(.failure(CancellationError())) }
}

extension Delivery {
  var listenerCount: Int { state.withLock { $0.listeners.count } }
}

/// The code that the article WritingAnAwaitable.md shows, run.
///
/// scripts/lint holds each block of the article against this file, without regard to spaces and line breaks.
@Suite("What the article on Awaitables shows", .timeLimit(.minutes(10)))
struct AwaitableSnippets {
  @Test func `a delivery is awaited, selected and combined`() async throws {
    try await onSerialQueue {
      let (delivery, other) = (Delivery(), Delivery())
      let job = co_launch { try co_await(delivery) }
      while delivery.listenerCount == 0 { try co_yield() }
      delivery.arrive(.success(42))
      #expect(try job.join() == 42)
      let found = try co_select {
        delivery.onAwait { try $0.get() }
        SelectCase.onTimeout(.seconds(1)) { 0 }
      }
      #expect(found == 42)
      let first = try co_race([delivery, other])
      #expect(first == 42)
      // The race has cancelled the member that it did not wait for.
      #expect(outcome { try co_await(other) } == "CancellationError")
    }
  }

  @Test func `a coroutine that is cancelled leaves no listener, and the delivery goes on`() async throws {
    try await onSerialQueue {
      let delivery = Delivery()
      let job = co_launch { try co_await(delivery) }
      while delivery.listenerCount == 0 { try co_yield() }
      job.cancel()
      #expect(outcome { try job.join() } == "CancellationError")
      #expect(delivery.listenerCount == 0)
      delivery.arrive(.success(1))
      #expect(try co_await(delivery) == 1)
    }
  }
}
