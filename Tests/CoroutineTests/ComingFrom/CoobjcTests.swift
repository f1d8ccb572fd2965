import Coroutine
import Dispatch
import Testing

/// Code of coobjc and coswift users to launch, wait and generate, rewritten; docs/coming-from/coobjc.md shows it.
@Suite("Coming from coobjc: coroutines", .timeLimit(.minutes(10)))
struct CoobjcTests {
  @Test func `co_launch: queued, on a queue, at once, lazily, with a stack of its own, and with a result`() async throws
  {
    let (queue, trace) = (taggedQueue("home"), Trace())
    try await onSerialQueue {
      let job = co_launch { trace("queued") }
      co_launch(start: .immediate) { trace("immediate") }
      let lazy = co_launch(start: .lazy) { trace("lazy") }
      trace("launched")
      try job.join()
      trace("joined")
      try lazy.join()
    }
    #expect(trace.all == ["immediate", "launched", "queued", "joined", "lazy"])
    #expect(try await co_launch(on: queue) { currentTag }.value == "home")
    #expect(try await co_launch(stack: .bytes(1 << 20)) { 1 }.value == 1)
  }

  @Test func `a thrown error reaches the joining coroutine`() async throws {
    let seen = try await onCoroutine {
      let job = co_launch { () throws -> Int in throw Oops("x") }
      return outcome { try job.join() }
    }
    #expect(seen == "Oops(x)")
  }

  @Test func `cancel, before the start, while waiting, and cancelAndJoin`() async throws {
    let seen = try await onSerialQueue {
      let (trace, never) = (Trace(), Promise<Int>())
      let early = co_launch { trace("never") }
      early.cancel()
      let waiting = co_launch { try co_await(never) }
      try co_yield()
      waiting.cancel()
      let ends = [outcome { try early.join() }, outcome { try waiting.join() }]
      return ends + trace.all + ["\(early.isCancelled) \(waiting.isFinished)"]
    }
    #expect(seen == ["CancellationError", "CancellationError", "true true"])
  }

  @Test func `co_isActive, and a body that looks itself`() async throws {
    #expect(!co_isCancelled)
    let seen = try await onSerialQueue {
      let job = co_launch { () throws -> Bool in
        while !co_isCancelled { try? co_yield() }
        try co_checkCancelled()
        return true
      }
      try co_yield()
      job.cancel()
      return outcome { try job.join() }
    }
    #expect(seen == "CancellationError")
  }

  @Test func `sub-coroutines end with their scope`() async throws {
    let seen = try await onSerialQueue {
      let trace = Trace()
      let failure = outcome {
        try co_scope { scope in
          scope.launch {
            defer { trace("sibling unwound") }
            try co_delay(.seconds(3600))
          }
          scope.launch { throw Oops("child") }
        }
      }
      return trace.all + [failure]
    }
    #expect(seen == ["sibling unwound", "Oops(child)"])
  }

  private static let user = CoroutineLocal(default: "nobody")

  @Test func `co_setspecific: a value bound for a coroutine and all that it launches`() async throws {
    let user = Self.user
    let seen = try await onCoroutine { try user.withValue("me") { try co_launch { user.value }.join() } }
    #expect(seen == "me" && user.value == "nobody")
  }

  @Test func `finishedBlock: several, at the end, whatever it is`() async throws {
    let ended = Gate()
    let job = co_launch { 1 }
    job.finally { ended.open() }
    try await ended.value
    #expect(job.isFinished)
  }

  @Test func `await a promise, with the error thrown or at hand; cancelled, the promise is left alone or not`()
    async throws
  {
    let seen = try await onSerialQueue {
      let (promise, failing, shared) = (Promise.value(1), Promise<Int>.failure(Oops("x")), Promise<Int>())
      let value = try co_await(promise)
      let result = Result { try co_await(failing) }
      let job = co_launch { () throws -> Int in
        do {
          return try co_await(shared)
        } catch {
          if co_isCancelled { shared.cancel() }
          throw error
        }
      }
      try co_yield()
      job.cancel()
      _ = outcome { try job.join() }
      return ["\(value)", outcome(result), shared.result.map { outcome($0) } ?? "pending"]
    }
    #expect(seen == ["1", "Oops(x)", "CancellationError"])
  }

  @Test func `batch_await: all or the first failure; each with its outcome, aligned`() async throws {
    let seen = try await onCoroutine {
      let promises = [Promise.value(1), Promise.value(2)]
      let mixed = [Promise.value(1), Promise<Int>.failure(Oops("x"))]
      let values = try co_all(promises)
      let results = try co_allSettled(mixed)
      return ["\(values)", outcome { try co_all(mixed) }] + results.map { outcome($0) }
    }
    #expect(seen == ["[1, 2]", "Oops(x)", "1", "Oops(x)"])
  }

  @Test func `several values are a tuple`() async throws {
    let seen = try await onCoroutine {
      let job = co_launch { (200, "OK") }
      let (status, text) = try job.join()
      let download = Promise<(data: String, length: Int)>.trying { (data: "body", length: 4) }
      let (data, length) = try co_await(download)
      return "\(status) \(text) \(data) \(length)"
    }
    #expect(seen == "200 OK body 4")
  }

  // The page shows the call as programs make it.
  @Test(.tags(.realClock)) func `co_delay, and what blocks`() async throws {
    let seen = try await onCoroutine {
      try co_delay(.milliseconds(1))
      return try co_blocking { 5 }
    }
    #expect(seen == 5)
    #expect(outcome { try co_delay(.seconds(3600)) } == "notInCoroutine")
  }

  @Test func `co_sequence: lazy, its body's errors are seen, it ends, and it may wait`() async throws {
    let numbers = co_sequence(of: Int.self) { yield in for number in 0..<3 { try yield(number) } }
    #expect(Array(numbers) == [0, 1, 2] && numbers.next() == nil)
    let echo = Generator<Int, String, Void> { yield in
      let parameter = try yield(1)
      #expect(parameter == "sent")
    }
    _ = try echo.step()
    _ = try echo.step("sent")
    let seen = try await onCoroutine {
      let (promise, channel) = (Promise.value(1), Channel<Int>(1))
      try channel.send(2)
      let waiting = co_sequence(of: Int.self) { yield in
        try yield(try co_await(promise))
        try yield(try channel.receive() ?? 0)
      }
      return Array(waiting)
    }
    #expect(seen == [1, 2])
    let open = co_sequence(of: Int.self) { yield in try yield(1) }
    _ = open.next()
    open.close()
    #expect(open.next() == nil)
  }
}
