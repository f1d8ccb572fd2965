import Coroutine
import Dispatch
import Testing

/// A waiting body parks its consumer, and gets the awaited value itself.
@Suite("Generators that wait", .timeLimit(.minutes(10)))
struct GeneratorWaitTests {
  @Test func `while the body waits the consumer's coroutine is parked and others on the queue run`() async throws {
    let trace = Trace()
    let values = try await onSerialQueue {
      let gate = Gate()
      co_launch {
        trace("other runs")
        gate.open()
      }
      let generator = co_sequence(of: Int.self) { yield in
        try yield(1)
        trace("waits")
        try gate.pass()
        trace("goes on")
        try yield(2)
      }
      return Array(generator)
    }
    #expect(values == [1, 2])
    #expect(trace.all == ["waits", "other runs", "goes on"])
  }

  @Test(.inWorlds) func `an awaited value is never delivered to the consumer`() throws {
    let values = try onWorldQueue {
      let answers = Promise.value(41)
      let generator = co_sequence(of: Int.self) { yield in
        let answer = try co_await(answers)
        try yield(answer + 1)
        try co_delay(.milliseconds(1))
        try yield(try co_suspend { done in done.resume(43) })
      }
      return Array(generator)
    }
    #expect(values == [42, 43])
  }

  @Test func `a generator inside a generator waits for the outermost consumer`() async throws {
    let values = try await onSerialQueue {
      let inner = co_sequence(of: Int.self) { yield in
        for number in 0..<3 {
          try co_yield()
          try yield(number)
        }
      }
      let outer = co_sequence(of: Int.self) { yield in while let number = inner.next() { try yield(number * 10) } }
      return Array(outer)
    }
    #expect(values == [0, 10, 20])
  }

  @Test func `a wait throws notInCoroutine into a body that a plain thread steps`() throws {
    let generator = co_sequence(of: String.self) { yield in
      do { try co_delay(.seconds(1000)) } catch CoroutineError.notInCoroutine { try yield("refused") }
      try co_yield()
    }
    #expect(generator.next() == "refused")
    #expect(generator.next() == nil)
    #expect(outcome { throw generator.failure ?? Oops() } as String == "notInCoroutine")
  }

  @Test func `a wait throws notInCoroutine into a body that async code steps`() async {
    let refused = { () -> String in
      outcome { () -> String in
        let generator = co_sequence(of: Int.self) { _ in try co_delay(.seconds(1000)) }
        _ = try generator.step()
        return "waited"
      }
    }()
    #expect(refused == "notInCoroutine")
  }

  @Test func `cancelling the consumer ends the body's wait with an error, and the consumer is not left parked`()
    async throws
  {
    let trace = Trace()
    let ended = try await onSerialQueue {
      let job = co_launch {
        let generator = co_sequence(of: Int.self) { yield in
          defer { trace("body unwound") }
          try waitForCancellation()
          try yield(1)
        }
        let values = Array(generator)
        trace("\(values) \(name(of: generator.failure ?? Oops()))")
      }
      try co_yield()
      job.cancel(Oops("stop"))
      return outcome { try job.join() }
    }
    #expect(trace.all == ["body unwound", "[] Oops(stop)"])
    #expect(ended == "()")
  }

  @Test(.inWorlds) func `the consumer's deadline holds for the body's waits`() throws {
    let ended = try onWorldQueue {
      let generator = co_sequence(of: Int.self) { yield in
        try yield(1)
        try waitForCancellation()
      }
      _ = generator.next()
      return outcome { try co_timeout(.milliseconds(1)) { try generator.step() } }
    }
    #expect(ended == "TimeoutError")
  }

  // A body that waits for a real timer comes back to the queue of its present consumer.
  @Test(.tags(.realClock))
  func `each step may come from another coroutine on another queue, also those in which the body waits`()
    async throws
  {
    let generator = co_sequence(of: String.self) { yield in
      while true {
        try co_yield()
        try yield(currentTag ?? "none")
        try co_delay(.microseconds(10))
      }
    }
    let handed = Handed(generator)
    for round in 0..<20 {
      let queue = taggedQueue("queue \(round % 3)")
      let tag = try await onCoroutine(on: queue) { handed.value.next() }
      #expect(tag == "queue \(round % 3)")
    }
  }

  @Test func `while the body waits, another coroutine of the queue that steps it gets alreadyRunning`() async throws {
    let outcomes = try await onSerialQueue {
      let gate = Gate()
      let generator = co_sequence(of: Int.self) { yield in
        try gate.pass()
        try yield(1)
      }
      let handed = Handed(generator)
      let consumer = co_launch { handed.value.next() }
      try co_yield()
      let second = outcome { try handed.value.step() }
      gate.open()
      return [second, "\(String(describing: try consumer.join()))"]
    }
    #expect(outcomes == ["alreadyRunning", "Optional(1)"])
  }

  @Test func `a step by its own body throws alreadyRunning, and the body continues`() throws {
    var itself: Generator<String, Never, Void>?
    itself = co_sequence { yield in try yield(outcome { try itself?.step() }) }
    #expect(itself?.next() == "alreadyRunning")
    #expect(itself?.next() == nil)
    itself = nil
  }

  @Test func `stepping on two threads at once ends the program with a message`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let inside = DispatchSemaphore(value: 0)
      let never = DispatchSemaphore(value: 0)
      let generator = co_sequence(of: Int.self) { yield in
        inside.signal()
        never.wait()
        try yield(1)
      }
      let handed = Handed(generator)
      startThread { _ = handed.value.next() }
      inside.wait()
      _ = handed.value.next()
    }
    let text = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains("a generator was used from two threads at once"))
  }

  @Test func `the body's cleanup may wait during close, but not during a release, which cannot suspend`()
    async throws
  {
    let trace = Trace()
    try await onSerialQueue {
      func make(_ name: String) -> Generator<Int, Never, Void> {
        co_sequence { yield in
          defer { trace("\(name) \(outcome { try co_yield() })") }
          try yield(1)
        }
      }
      let closed = make("close")
      _ = closed.next()
      closed.close()
      do {
        let dropped = make("drop")
        _ = dropped.next()
      }
      // The code is in a coroutine again after the release.
      try co_yield()
    }
    #expect(trace.all == ["close ()", "drop notInCoroutine"])
  }

  @Test func `an unobserved failure is reported when the generator is released`() async throws {
    let errors = UnhandledErrors()
    let (seen, unseen) = (errors.failure("seen"), errors.failure("unseen"))
    for failure in [seen, unseen] {
      let generator = co_sequence(of: Int.self) { _ in throw failure }
      #expect(generator.next() == nil)
      if failure.label == "seen" { #expect(generator.failure != nil) }
    }
    #expect(errors.labels == ["unseen"])
  }
}
