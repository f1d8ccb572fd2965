import Coroutine
import Dispatch
import Testing

/// Misuse ends the program with a message that says what to do, or throws an error if there is a caller to get it.
@Suite("Generators, misuse", .timeLimit(.minutes(10)))
struct GeneratorMisuseTests {
  @Test func `next called by the body itself ends the program with a message`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      var itself: Generator<Int, Never, Void>?
      itself = co_sequence { yield in try yield(itself?.next() ?? 0) }
      _ = itself?.next()
    }
    #expect(text(result).contains("next() was called, but the generator is running already; step it from outside"))
  }

  @Test func `close called by the body itself ends the program with a message`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      var itself: Generator<Int, Never, Void>?
      itself = co_sequence { yield in
        itself?.close()
        try yield(0)
      }
      _ = itself?.next()
    }
    #expect(text(result).contains("close() of a generator that is running; let its body return or throw"))
  }

  @Test func `an outer body's yielder used on an inner body's stack ends the program with a message`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let outer = co_sequence(of: Int.self) { outerYield in
        let inner = co_sequence(of: Int.self) { _ in try outerYield(1) }
        _ = inner.next()
      }
      _ = outer.next()
    }
    #expect(text(result).contains("a generator's yield was called outside of its body"))
  }

  @Test func `a body that swallows CoroutineError.yieldInsideScope for ever ends the program with a message`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let job = co_launch {
        let generator = co_sequence(of: Int.self) { yield in
          try co_timeout(.seconds(1000)) { while true { try? yield(1) } }
        }
        _ = generator.next()
      }
      try synchronously { try job.blockingWait() }
    }
    #expect(text(result).contains("swallowed CoroutineError.yieldInsideScope 100 times"))
  }

  @Test func `closing a generator on another thread during a step ends the program with a message`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let inside = DispatchSemaphore(value: 0)
      let never = DispatchSemaphore(value: 0)
      let handed = Handed(
        co_sequence(of: Int.self) { yield in
          inside.signal()
          never.wait()
          try yield(1)
        }
      )
      startThread { _ = handed.value.next() }
      inside.wait()
      handed.value.close()
    }
    #expect(text(result).contains("a generator was used from two threads at once"))
  }

  @Test func `an overflow in a body names the generator and its launch site`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let generator = co_sequence(of: Int.self, stack: .bytes(64 << 10), file: "Shop/Walk.swift", line: 7) { yield in
        try yield(descend(1 << 28))
      }
      _ = generator.next()
    }
    #expect(text(result).contains(/coroutine "generator" \(id [1-9][0-9]*\) overflowed its stack of 64 KiB/))
    #expect(text(result).contains("launched at Shop/Walk.swift:7"))
  }

  @Test(arguments: [true, false])
  func `an overflow in a body that a coroutine steps names the generator, after the step the coroutine`(
    _ isInside: Bool
  ) async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [isInside] in
      _ = try await co_launch(name: "stepper", stack: .bytes(64 << 10)) {
        let generator = co_sequence(of: Int.self, stack: .bytes(64 << 10)) { yield in
          try yield(1)
          if isInside { try yield(descend(1 << 28)) }
        }
        _ = generator.next()
        if isInside { _ = generator.next() }
        return descend(1 << 28)
      }
      .value
    }
    let name = isInside ? "generator" : "stepper"
    #expect(text(result).contains("coroutine \"\(name)\" (id "), "\(text(result))")
    #expect(text(result).contains("overflowed its stack of 64 KiB"))
  }

  @Test func `a step by its own body throws alreadyRunning after the body has moved to another queue`() async throws {
    let queue = taggedQueue("elsewhere")
    let seen = try await onSerialQueue {
      var itself: Generator<String, Never, Void>?
      itself = co_sequence { yield in
        try co_switch(to: queue)
        try yield("\(currentTag ?? "none") \(outcome { try itself?.step() })")
      }
      defer { itself = nil }
      return itself?.next()
    }
    #expect(seen == "elsewhere alreadyRunning")
  }

  @Test func `a body that ends with its consumer's cancellation is not reported`() async throws {
    let errors = UnhandledErrors()
    let reason = errors.failure("reason")
    try await onSerialQueue {
      let job = co_launch {
        let generator = co_sequence(of: Int.self) { yield in
          try waitForCancellation()
          try yield(1)
        }
        #expect(generator.next() == nil)
      }
      try co_yield()
      job.cancel(reason)
      try job.join()
    }
    #expect(errors.labels.isEmpty)
  }

  private func text(_ result: ExitTest.Result?) -> String {
    String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
  }
}

/// Recurses with one frame per level.
@inline(never)
private func descend(_ depth: Int) -> Int {
  var frame = (depth, depth, depth, depth, depth, depth, depth, depth)
  return withUnsafeMutableBytes(of: &frame) { bytes in
    guard depth > 0 else { return Int(bytes[0]) }
    return descend(depth - 1) &+ Int(bytes[depth & 63])
  }
}
