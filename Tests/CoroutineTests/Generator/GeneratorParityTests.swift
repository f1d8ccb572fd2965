import Coroutine
import Dispatch
import Testing

/// One test for each promise that the iterators before this library made, or broke.
@Suite("Generators, guarantee by guarantee", .timeLimit(.minutes(10)))
struct GeneratorParityTests {
  @Test func `creation starts nothing, the first step does`() throws {
    let trace = Trace()
    let generator = Generator<Int, Never, Void> { yield in
      trace("body")
      try yield(1)
    }
    #expect(trace.all == [])
    #expect(!generator.isFinished)
    #expect(generator.next() == 1)
    #expect(trace.all == ["body"])
  }

  @Test func `a step resumes the body at once, and tells a yield from the end`() throws {
    let trace = Trace()
    let generator = Generator<Int, Never, String> { yield in
      trace("a")
      try yield(1)
      trace("b")
      return "end"
    }
    #expect(describe(try generator.step()) == "value 1, done false")
    trace("consumer")
    #expect(describe(try generator.step()) == "value end, done true")
    #expect(trace.all == ["a", "consumer", "b"])
  }

  @Test func `the pending yield returns the input`() throws {
    let echo = Generator<String, String, Void> { yield in
      var heard = try yield("ready")
      while let word = heard { heard = try yield("heard \(word)") }
    }
    _ = try echo.step()
    #expect(describe(try echo.step("one")) == "value heard one, done false")
    #expect(describe(try echo.step("two")) == "value heard two, done false")
  }

  @Test func `a step without input yields nil, which differs from an input of nil`() throws {
    let seen = Trace()
    let generator = Generator<Int, Int?, Void> { yield in
      for number in 0..<3 {
        switch try yield(number) {
        case .none: seen("nothing sent")
        case .some(.none): seen("nil sent")
        case .some(.some(let value)): seen("\(value) sent")
        }
      }
    }
    _ = try generator.step()
    _ = try generator.step()
    _ = try generator.step(nil)
    _ = try generator.step(7)
    #expect(seen.all == ["nothing sent", "nil sent", "7 sent"])
  }

  @Test func `without an input the yielded value itself is one operator away`() throws {
    let generator = Generator<Int, Int, Int> { yield in try yield(4) ?? 4 }
    _ = try generator.step()
    #expect(describe(try generator.step()) == "value 4, done true")
  }

  @Test func `the first input has no yield to go to and is dropped`() throws {
    let released = Flag()
    let generator = Generator<Int, Tracked, Int> { yield in try yield(1) == nil ? 1 : 2 }
    #expect(describe(try generator.step(Tracked { released.raise() })) == "value 1, done false")
    #expect(released.isRaised)
    #expect(describe(try generator.step()) == "value 1, done true")
  }

  @Test func `the result is returned for ever, with or without input, and the body does not run again`() throws {
    let trace = Trace()
    let generator = Generator<Int, Int, String> { _ in
      trace("body")
      return "result"
    }
    for _ in 0..<3 {
      #expect(describe(try generator.step()) == "value result, done true")
      #expect(describe(try generator.step(1)) == "value result, done true")
      #expect(generator.next() == nil)
    }
    #expect(trace.all == ["body"])
    #expect(generator.isFinished)
  }

  @Test func `a body without a result ends with nothing`() throws {
    let generator = co_sequence(of: Int.self) { _ in }
    guard case .returned = try generator.step() else {
      Issue.record("yielded")
      return
    }
    #expect(generator.next() == nil)
  }

  @Test func `a hundred steps evaluate a hundred times, never ahead`() {
    let trace = Trace()
    let generator = naturals(trace)
    for _ in 0..<100 { _ = generator.next() }
    #expect(trace.count == 100)
  }

  @Test(arguments: 0...3)
  func `after k values the next step ends and does not hang`(k: Int) async throws {
    let (values, ends) = try await onSerialQueue {
      let generator = co_sequence(of: Int.self) { yield in for number in 0..<k { try yield(number) } }
      let values = Array(generator)
      return (values, (0..<3).map { _ in generator.next() == nil })
    }
    #expect(values == Array(0..<k))
    #expect(ends == [true, true, true])
  }

  @Test func `one generator pulls from another`() {
    let squares = co_sequence(of: Int.self) { yield in
      let numbers = naturals()
      while let number = numbers.next() { try yield(number * number) }
    }
    #expect(Array(squares.prefix(5)) == [0, 1, 4, 9, 16])
  }

  @Test func `it works on a plain thread, in a coroutine and in async code alike`() async throws {
    #expect(Array(naturals().prefix(3)) == [0, 1, 2])
    let onThread = try await onOwnThread { Array(naturals().prefix(3)) }
    let inCoroutine = try await onCoroutine { Array(naturals().prefix(3)) }
    #expect(onThread == [0, 1, 2])
    #expect(inCoroutine == [0, 1, 2])
  }

  @Test func `for-in and the lazy operators evaluate only requested elements`() {
    let trace = Trace()
    let generator = naturals(trace)
    let found = generator.lazy.map { $0 * 2 }.filter { $0 % 3 == 0 }.prefix(2)
    #expect(Array(found) == [0, 6])
    #expect(trace.count == 4)
    for number in generator where number > 5 { break }
    #expect(trace.count == 7)
  }

  @Test func `yields from any depth: recursion, a visitor, a sort's comparison`() throws {
    func count(_ depth: Int, _ visit: (Int) throws -> Void) rethrows {
      if depth > 0 {
        try count(depth - 1, visit)
        try visit(depth)
        try count(depth - 1, visit)
      }
    }
    let deep = co_sequence(of: Int.self) { yield in try count(4) { try yield($0) } }
    #expect(Array(deep) == [1, 2, 1, 3, 1, 2, 1, 4, 1, 2, 1, 3, 1, 2, 1])

    let comparisons = Generator<(Int, Int), Bool, [Int]> { yield in
      try [3, 1, 2].sorted { try yield(($0, $1)) ?? false }
    }
    var step = try comparisons.step()
    while case .yielded((let one, let other)) = step { step = try comparisons.step(one < other) }
    guard case .returned(let sorted) = step else { return }
    #expect(sorted == [1, 2, 3])
  }

  @Test func `elements of every layout arrive intact`() {
    struct Large { var words = (0, 1, 2, 3, 4, 5, 6, 7) }
    let nothing = co_sequence(of: Void.self) { yield in for _ in 0..<3 { try yield(()) } }
    #expect(Array(nothing).count == 3)
    let optional = co_sequence(of: Int?.self) { yield in for value in [1, nil, 3] { try yield(value) } }
    #expect(Array(optional) == [1, nil, 3])
    let large = co_sequence(of: Large.self) { yield in
      for number in 0..<3 { try yield(Large(words: (number, 0, 0, 0, 0, 0, 0, -number))) }
    }
    #expect(Array(large).map { $0.words.7 } == [0, -1, -2])
    let mixed = co_sequence(of: Any.self) { yield in for value in [1, "two", [3.0]] as [Any] { try yield(value) } }
    #expect(Array(mixed).map { "\($0)" } == ["1", "two", "[3.0]"])
  }
}
