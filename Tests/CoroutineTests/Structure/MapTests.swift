import CoroutineTesting
import Testing

@testable import Coroutine

@Suite("co_map", .timeLimit(.minutes(10)))
struct MapTests {
  private static func rows(_ count: Int, _ read: Locked<Int> = Locked(0)) -> Generator<Int, Never, Void> {
    co_sequence { yield in
      for number in 0..<count {
        read.withLock { $0 += 1 }
        try yield(number)
      }
      throw Oops("source")
    }
  }

  private struct Pages: AsyncSequence, AsyncIteratorProtocol, Sendable {
    var number = 0
    func makeAsyncIterator() -> Pages { self }
    mutating func next() async throws -> Int? {
      number += 1
      if number > 2 { throw Oops("pages") }
      return number
    }
  }

  @Test func `throws the failure of a generator, and returns no part`() async throws {
    let seen = try await onCoroutine {
      [
        outcome { try co_map(Self.rows(2), limit: 2) { $0 * 2 } },
        outcome { try co_map(co_sequence(Pages()), limit: 2) { $0 } },
        outcome { try co_await(Promise.all(of: Self.rows(2), concurrently: 1) { .value($0) }) },
        outcome { try co_await(Promise.allSettled(of: Self.rows(2), concurrently: 3) { .value($0) }) },
      ]
    }
    #expect(seen[0] == "Oops(source)" && seen[1] == "Oops(pages)")
    #expect(seen[2] == "Oops(source)" && seen[3] == "Oops(source)", "\(seen)")
  }

  @Test func `delegation to a sequence throws its failure`() async throws {
    let seen = try await onCoroutine {
      let outer = co_sequence(of: Int.self) { yield in
        func all(_ elements: some Sequence<Int>) throws { try yield.all(of: elements) }
        try all(Self.rows(2))
      }
      let values = Array(outer)
      return "\(values) \(outer.failure.map { name(of: $0) } ?? "none")"
    }
    #expect(seen == "[0, 1] Oops(source)")
  }

  @Test(arguments: [true, false])
  func `throws the cancellation that has ended a source without an error`(_ isDelegated: Bool) async throws {
    let seen = try await onSerialQueue {
      let progress = ProgressPromise<Int>()
      progress.update(completed: 1, total: 10)
      let job = co_launch { () throws -> [Int] in
        if !isDelegated { return try co_map(progress, limit: 2) { $0.completed } }
        let updates = co_sequence(of: ProgressUpdate.self) { yield in try yield.all(of: progress) }
        let all = updates.map(\.completed)
        if let failure = updates.failure { throw failure }
        return all
      }
      // It has got the only update, and waits for the next.
      for _ in 0..<5 { try co_yield() }
      job.cancel()
      return outcome { try job.join() }
    }
    #expect(seen == "CancellationError")
  }

  @Test(.inWorlds) func `takes an element only when it can begin it`() throws {
    let (read, active, most) = (Locked(0), Locked(0), Locked(0))
    let values = outcome {
      try co_map(Self.rows(100, read), limit: 3) { number in
        active.withLock { $0 += 1 }
        most.withLock { $0 = max($0, active.current) }
        if number == 20 { throw Oops("body") }
        try co_delay(.milliseconds(1))
        active.withLock { $0 -= 1 }
        return number
      }
    }
    #expect(values == "Oops(body)")
    #expect(read.current <= 24 && most.current == 3)
  }

  @Test(.inWorlds) func `returns the results in the order of the elements`() throws {
    let values = try co_map(0..<50, limit: 7) { number in
      try co_delay(.milliseconds((number * 7) % 5))
      return number
    }
    #expect(values == Array(0..<50))
    #expect(try co_map([Int](), limit: 1) { $0 } == [])
  }

  @Test(.inWorlds) func `is cancelled with its caller`() throws {
    let job = co_launch { try co_map(0..., limit: 2) { _ in try waitForCancellation() } }
    try settleWorld()
    job.cancel(Oops("outside"))
    #expect(outcome { try job.join() } == "Oops(outside)")
  }
}
