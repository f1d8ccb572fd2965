import Testing

@_spi(Hosting) @testable import Coroutine

/// Runs (Run.swift) that a handler on the loop of another library begins: the handler runs on no coroutine's stack, and
/// the loop is no queue.
@Suite("Promise: a run that a handler on a host's loop begins", .timeLimit(.minutes(10)))
struct HostedRunTests {
  /// Attaches a handler in a coroutine of a loop, and runs it there.
  private func inHandler<Output: Sendable>(
    _ body: @escaping @Sendable (Loop) -> Promise<Output>
  ) async throws -> Output {
    let (loop, start) = (Loop(), Promise<Void>())
    // Nothing but the handler, and then the run, keeps the scheduler of the loop.
    let result = try await co_launch(on: HostedScheduler(loop)) { start.then { body(loop) } }.value
    start.fulfill()
    return try await result.value
  }

  @Test func `a retry makes all its attempts on the loop's thread`() async throws {
    let places = Locked<[Bool]>([])
    let last = try await inHandler { loop in
      .retry(attempts: 4, delay: Backoff { .microseconds($0 % 2) }) { attempt in
        places.withLock { $0.append(loop.isCurrentForCoroutines) }
        if attempt < 4 { throw Oops() }
        return .value(attempt)
      }
    }
    #expect(last == 4)
    #expect(places.current == [true, true, true, true])
  }

  @Test(arguments: [1, 3])
  func `a bounded all makes its promises on the loop's thread, wherever they settle`(_ limit: Int) async throws {
    let places = Locked<[Bool]>([])
    let values = try await inHandler { loop in
      Promise<Int>.all(of: 0..<8, concurrently: limit) { element in
        places.withLock { $0.append(loop.isCurrentForCoroutines) }
        return Promise { done in startThread { done.resume(element) } }
      }
    }
    #expect(values == Array(0..<8))
    #expect(places.current == Array(repeating: true, count: 8))
  }

  /// The loop refuses the coroutine of the run.
  @Test func `on a loop that has ended, the result of a retry rejects`() async throws {
    let (loop, start) = (Loop(), Promise<Void>())
    let host = HostedScheduler(loop)
    let result = try await co_launch(on: host) {
      start.then { Promise<Int>.retry(attempts: 2) { _ in throw Oops("attempt") } }
    }.value
    host.drain.end(Oops("ended"))
    start.fulfill()
    #expect(await asyncOutcome { try await result.value } == "abandoned")
  }
}
