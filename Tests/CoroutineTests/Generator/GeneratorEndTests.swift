import CCoroutine
import Coroutine
import Testing

/// The ends of a generator: by itself, by a failure, by close, by release; nothing stays behind.
@Suite("Generators, endings", .timeLimit(.minutes(10)))
struct GeneratorEndTests {
  /// A body with a cleanup at each depth.
  private func cleaning(_ trace: Trace) -> Generator<Int, Never, Void> {
    co_sequence { yield in
      let object = Tracked { trace("object released") }
      defer { trace("outer defer") }
      try withExtendedLifetime(object) {
        defer { trace("inner defer") }
        for number in 0... { try yield(number) }
      }
    }
  }

  private let cleanups = ["inner defer", "outer defer", "object released"]

  @Test func `releasing a generator runs every defer and releases every object`() {
    let trace = Trace()
    do {
      let generator = cleaning(trace)
      #expect(Array(generator.prefix(2)) == [0, 1])
    }
    #expect(trace.all == cleanups)
  }

  @Test func `closing it does the same, once, and leaves no failure`() throws {
    let trace = Trace()
    let generator = cleaning(trace)
    _ = generator.next()
    generator.close()
    generator.close()
    #expect(trace.all == cleanups)
    #expect(generator.isFinished)
    #expect(generator.failure == nil)
    #expect(generator.next() == nil)
    #expect(throws: GeneratorClosedError.self) { try generator.step() }
  }

  @Test func `leaving a for-in early does not end the generator; releasing it does`() {
    let trace = Trace()
    do {
      let generator = cleaning(trace)
      for number in generator where number == 3 { break }
      #expect(trace.all == [])
      #expect(generator.next() == 4)
    }
    #expect(trace.all == cleanups)
  }

  @Test func `if it is closed before the first step, the body never runs and its captures are released`() {
    let trace = Trace()
    let generator: Generator<Int, Never, Void>
    do {
      let object = Tracked { trace("released") }
      generator = co_sequence { yield in
        trace("body")
        withExtendedLifetime(object) {}
        try yield(1)
      }
    }
    generator.close()
    #expect(trace.all == ["released"])
    #expect(generator.isFinished)
    #expect(generator.next() == nil)
  }

  @Test func `if it is closed before the first step, its captures find it finished`() {
    let trace = Trace()
    var generator: Generator<Int, Never, Void>?
    // Sound because all of this runs on one thread.
    nonisolated(unsafe) weak var seen: Generator<Int, Never, Void>?
    do {
      let object = Tracked {
        trace("finished: \(seen?.isFinished ?? false)")
        seen?.close()
        trace("next: \(String(describing: seen?.next()))")
      }
      generator = co_sequence { yield in
        withExtendedLifetime(object) {}
        try yield(1)
      }
      seen = generator
    }
    generator?.close()
    #expect(trace.all == ["finished: true", "next: nil"])
  }

  @Test func `the pending yield throws GeneratorClosedError, which a body may turn into a result`() throws {
    let generator = Generator<Int, Never, String> { yield in
      do {
        try yield(1)
        return "went on"
      } catch is GeneratorClosedError {
        return "closed"
      }
    }
    _ = generator.next()
    generator.close()
    #expect(describe(try generator.step()) == "value closed, done true")
  }

  @Test
  func `a body that yields again while it is closed gets GeneratorClosedError again, and its element is released`() {
    let released = Trace()
    let raised = Trace()
    let generator = co_sequence(of: Tracked.self) { yield in
      for number in 0..<50 {
        do { try yield(Tracked { released("\(number)") }) } catch { raised("\(error is GeneratorClosedError)") }
      }
    }
    _ = generator.next()
    generator.close()
    #expect(generator.isFinished)
    #expect(raised.all == Array(repeating: "true", count: 50))
    #expect(released.all == (0..<50).map(String.init))
  }

  @Test func `a failure ends the generator, stays, and is thrown again`() {
    let generator = co_sequence(of: Int.self) { yield in
      try yield(1)
      throw Oops("broken")
    }
    #expect(Array(generator) == [1])
    #expect(generator.failure as? Oops == Oops("broken"))
    #expect(generator.isFinished)
    for _ in 0..<2 { #expect(throws: Oops("broken")) { try generator.step() } }
  }

  @Test func `an error thrown in is raised at the pending yield`() throws {
    let generator = Generator<String, Never, Void> { yield in
      while true {
        do { try yield("waiting") } catch let failure as Oops { try yield("caught \(failure.label)") }
      }
    }
    _ = try generator.step()
    #expect(describe(try generator.throw(Oops("a"))) == "value caught a, done false")
    _ = try generator.step()
    #expect(describe(try generator.throw(Oops("b"))) == "value caught b, done false")
    #expect(throws: Oops("c")) { try generator.throw(Oops("c")) }
    #expect(generator.failure as? Oops == Oops("c"))
  }

  @Test func `an error thrown in before the start or after the end is thrown to the caller`() {
    let trace = Trace()
    let generator = co_sequence(of: Int.self) { _ in trace("body") }
    #expect(throws: Oops("early")) { try generator.throw(Oops("early")) }
    #expect(generator.next() == nil)
    #expect(generator.failure as? Oops == Oops("early"))
    #expect(throws: Oops("late")) { try generator.throw(Oops("late")) }
    #expect(trace.all == [])
  }

  @Test func `the stack is given back at the end, not when the generator is released`() async {
    await #expect(processExitsWith: .success) {
      let generator = co_sequence(of: Int.self) { yield in try yield(1) }
      let before = cco_stacks().live
      _ = generator.next()
      #expect(cco_stacks().live == before + 1)
      #expect(generator.next() == nil)
      #expect(cco_stacks().live == before)
      withExtendedLifetime(generator) {}
    }
  }

  @Test func `a stack that is too large is a failure`() {
    let generator = Generator<Int, Never, Void>(stack: .bytes(1 << 30)) { yield in try yield(1) }
    #expect(throws: CoroutineError.self) { try generator.step() }
    guard case CoroutineError.stackTooLarge(1 << 30)? = generator.failure else {
      Issue.record("\(String(describing: generator.failure))")
      return
    }
  }

  @Test func `a body that swallows GeneratorClosedError for ever ends the program with a message`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let generator = co_sequence(of: Int.self) { yield in while true { try? yield(1) } }
      _ = generator.next()
      generator.close()
    }
    #expect(text(result).contains("swallowed GeneratorClosedError 100 times"))
  }

  @Test func `a yielder that is used after the end ends the program with a message`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      var escaped: Yielder<Int, Never>?
      let generator = co_sequence(of: Int.self) { yield in escaped = yield }
      _ = generator.next()
      // The next one has its stack.
      let other = co_sequence(of: Int.self) { _ in try escaped?(1) }
      _ = other.next()
    }
    #expect(text(result).contains("a generator's yield was called outside of its body"))
  }

  @Test func `a yielder that is used by the consumer ends the program with a message`() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      var escaped: Yielder<Int, Never>?
      let generator = co_sequence(of: Int.self) { yield in
        escaped = yield
        try yield(1)
      }
      _ = generator.next()
      try escaped?(2)
    }
    #expect(text(result).contains("a generator's yield was called outside of its body"))
  }

  private func text(_ result: ExitTest.Result?) -> String {
    String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
  }
}
