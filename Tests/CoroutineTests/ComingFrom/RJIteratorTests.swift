import Coroutine
import Dispatch
import Testing

/// What RJIterator's users wrote, written here; docs/coming-from/rjiterator.md shows it.
///
/// How generators behave in detail is tested in Generator/.
@Suite("Coming from RJIterator", .timeLimit(.minutes(10)))
struct RJIteratorTests {
  private func counter(_ count: Int) -> Generator<Int, Int, String> {
    Generator<Int, Int, String> { yield in
      for number in 0..<count { try yield(number) }
      return "done"
    }
  }

  @Test func `a generator is a closure with a type; it starts at the first step`() throws {
    let trace = Trace()
    let generator = Generator<String, String, Int> { yield in
      trace("started")
      let answer = try yield("question")
      return answer?.count ?? 0
    }
    #expect(trace.all.isEmpty)
    guard case .yielded(let question) = try generator.step() else { return #expect(Bool(false)) }
    #expect(question == "question" && trace.all == ["started"])
    guard case .returned(let count) = try generator.step("four") else { return #expect(Bool(false)) }
    #expect(count == 4)
    guard case .returned(let again) = try generator.step() else { return #expect(Bool(false)) }
    #expect(again == 4 && generator.isFinished)
  }

  @Test func `next without an input gives the yielded value back, with one operator`() throws {
    let generator = Generator<Int, Int, Int> { yield in try yield(4) ?? 4 }
    _ = try generator.step()
    #expect(outcome { try generator.step() } == "returned(4)")
  }

  @Test func `nesting: the values of an inner one, not its result, which is what the call returns`() throws {
    let outer = Generator<Int, Int, String> { yield in
      let result = try yield.all(of: counter(2))
      return "inner \(result)"
    }
    #expect(outer.next() == 0 && outer.next() == 1)
    #expect(outcome { try outer.step() } == "returned(\"inner done\")")
    let recursive = co_sequence(of: Int.self) { yield in
      func walk(_ depth: Int) throws {
        try yield(depth)
        if depth > 0 { try walk(depth - 1) }
      }
      try walk(3)
    }
    #expect(Array(recursive) == [3, 2, 1, 0])
  }

  @Test func `values sent while delegating reach the inner body, a finished inner one gives nothing`() throws {
    let trace = Trace()
    let outer = Generator<Int, String, Void> { yield in
      let inner = Generator<Int, String, Void> { yield in trace(try yield(1) ?? "nothing") }
      try yield.all(of: inner)
      try yield.all(of: inner)
    }
    _ = try outer.step()
    _ = try outer.step("for the inner one")
    #expect(trace.all == ["for the inner one"] && outer.isFinished)
  }

  @Test func `dropping an unfinished one runs its defers`() {
    let trace = Trace()
    do {
      let generator = co_sequence(of: Int.self) { yield in
        defer { trace("unwound") }
        try yield(1)
      }
      #expect(generator.next() == 1)
    }
    #expect(trace.all == ["unwound"])
  }

  @Test func `a step from inside of the body is refused`() throws {
    var itself: Generator<Int, Never, Void>?
    let generator = Generator<Int, Never, Void> { _ in _ = try itself!.step() }
    itself = generator
    #expect(outcome { try generator.step() } == "alreadyRunning")
    itself = nil
  }

  @Test func `rj_async and finally: any queue, a handle, a result, several handlers, never lost`() async throws {
    let (queue, trace, ended) = (taggedQueue("app"), Trace(), Gate())
    let job = co_launch(on: queue) { currentTag ?? "none" }
    job.finally(on: queue) { trace("first") }
    job.finally(on: queue) { trace("second") }.finally(on: queue) { ended.open() }
    #expect(try await job.value == "app")
    try await ended.value
    #expect(trace.all == ["first", "second"])
  }

  @Test func `rj_await of a closure with a callback: first use wins, an error is thrown, never used is abandoned`()
    async throws
  {
    let seen = try await onCoroutine {
      let text = try co_suspend { done in download { text, error in done(text, error) } }
      let failed = outcome { () -> String in try co_suspend { done in done(nil, Oops("e")) } }
      let never = outcome { () -> String in try co_suspend { _ in } }
      return [text, failed, never]
    }
    #expect(seen == ["data", "Oops(e)", "abandoned"])
  }

  private func download(_ done: @escaping @Sendable (String?, (any Error)?) -> Void) {
    startThread { done("data", nil) }
  }

  @Test func `rj_await of a promise, of a plain value, and with the error at hand`() async throws {
    let seen = try await onCoroutine {
      let promise = Promise.value(1)
      let failing = Promise<Int>.failure(Oops("x"))
      let value = try co_await(promise)
      let result = Result { try co_await(failing) }
      guard case .failure(let error) = result else { return "no error" }
      return "\(value) \(name(of: error))"
    }
    #expect(seen == "1 Oops(x)")
  }

  @Test func `an await in a generator suspends the consumer's coroutine and delivers nothing`() async throws {
    let seen = try await onSerialQueue {
      let ready = Promise<Int>()
      let generator = co_sequence(of: Int.self) { yield in try yield(try co_await(ready) + 1) }
      co_launch { ready.fulfill(1) }
      return Array(generator)
    }
    #expect(seen == [2])
  }

  @Test func `a throw ends a generator and is kept`() throws {
    let generator = Generator<Int, Never, Void> { _ in throw Oops("body") }
    #expect(generator.next() == nil)
    #expect(generator.failure as? Oops == Oops("body"))
    #expect(outcome { try generator.step() } == "Oops(body)")
  }
}
