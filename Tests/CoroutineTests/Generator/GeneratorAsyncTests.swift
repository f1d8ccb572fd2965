import Coroutine
import Testing

@Suite("Generators and async code", .timeLimit(.minutes(10)))
struct GeneratorAsyncTests {
  // Async code that iterates is outside of every world.
  @Test(.tags(.realClock)) func `async code iterates over a generator whose body waits`() async throws {
    let generator = co_sequence(of: Int.self) { yield in
      for number in 0..<5 {
        try co_delay(.microseconds(number * 10))
        try yield(number)
      }
    }
    var values: [Int] = []
    for try await value in generator.asyncElements() { values.append(value) }
    #expect(values == [0, 1, 2, 3, 4])
  }

  @Test func `close in async code lets the body's cleanup wait, after a break, and also in a cancelled Task`()
    async throws
  {
    for isCancelled in [false, true] {
      let trace = Trace()
      let generator = co_sequence(of: Int.self) { yield in
        defer { trace(outcome { try co_yield() }) }
        for number in 0... { try yield(number) }
      }
      let task = Task {
        let elements = generator.asyncElements()
        for try await number in elements where number == 3 { break }
        if isCancelled { withUnsafeCurrentTask { $0?.cancel() } }
        await elements.close()
        trace("closed")
        await elements.close()
      }
      try await task.value
      #expect(trace.all == ["()", "closed"])
    }
  }

  @Test func `the body's failure is thrown in async code`() async {
    let generator = co_sequence(of: Int.self) { yield in
      try yield(1)
      throw Oops("late")
    }
    var values: [Int] = []
    do {
      for try await value in generator.asyncElements() { values.append(value) }
      Issue.record("no error")
    } catch {
      #expect(name(of: error) == "Oops(late)")
    }
    #expect(values == [1])
  }

  @Test func `cancelling the Task ends the body's wait`() async throws {
    let trace = Trace()
    let waits = Gate()
    let task = Task {
      let generator = co_sequence(of: Int.self) { yield in
        defer { trace("unwound") }
        waits.open()
        try waitForCancellation()
        try yield(1)
      }
      for try await _ in generator.asyncElements() { trace("element") }
    }
    try await onCoroutine { try waits.pass() }
    task.cancel()
    let ended = await asyncOutcome { try await task.value }
    #expect(ended == "CancellationError")
    #expect(trace.all == ["unwound"])
  }

  @Test func `if the Task is cancelled between two elements, the next one throws`() async throws {
    let task = Task {
      var iterator = naturals().asyncElements().makeAsyncIterator()
      let first = try await iterator.next()
      withUnsafeCurrentTask { $0?.cancel() }
      let second = await asyncOutcome { try await iterator.next() }
      return (first, second)
    }
    let (first, second) = try await task.value
    #expect(first == 0)
    #expect(second == "CancellationError")
  }

  @Test func `a coroutine steps through an asynchronous sequence, only as far as it requests`() async throws {
    let trace = Trace()
    let values = try await onCoroutine {
      let numbers = AsyncStream(unfolding: {
        trace("asked")
        return trace.count
      })
      let generator = co_sequence(numbers)
      #expect(trace.count == 0)
      return Array(generator.prefix(3))
    }
    #expect(values == [1, 2, 3])
    #expect(trace.count == 3)
  }

  @Test func `the asynchronous sequence's end and failure are the generator's`() async throws {
    let outcomes = try await onCoroutine {
      let short = co_sequence(
        AsyncStream { continuation in
          continuation.yield(1)
          continuation.finish()
        }
      )
      let failing = co_sequence(AsyncThrowingStream<Int, any Error> { $0.finish(throwing: Oops("stream")) })
      return [
        "\(Array(short)) \(String(describing: short.failure))",
        "\(Array(failing)) \(name(of: failing.failure ?? Oops()))",
      ]
    }
    #expect(outcomes == ["[1] nil", "[] Oops(stream)"])
  }

  @Test func `cancelling the coroutine cancels the Task that fetches`() async throws {
    let asked = Gate()
    let cancelled = Gate()
    let ended = try await onSerialQueue {
      let job = co_launch {
        let endless = AsyncStream<Int>(
          unfolding: {
            asked.open()
            await withTaskCancellationHandler {
              try? await Task.sleep(for: .seconds(1000))
            } onCancel: {
              cancelled.open()
            }
            return nil
          })
        return try co_sequence(endless).step()
      }
      try asked.pass()
      job.cancel()
      try cancelled.pass()
      return outcome { _ = try job.join() }
    }
    #expect(ended == "CancellationError")
  }
}
