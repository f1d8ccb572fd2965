import CCoroutine
import Coroutine
import Testing

@Suite("Generators, delegation", .timeLimit(.minutes(10)))
struct GeneratorDelegationTests {
  @Test func `inputs, errors and results pass to and from the innermost generator`() throws {
    let inner = Generator<String, String, Int> { yield in
      var letters = 0
      while let word = try yield("\(letters)") {
        letters += word.count
      }
      do {
        try yield("no input")
      } catch let failure as Oops {
        try yield("caught \(failure.label)")
      }
      return letters
    }
    let outer = Generator<String, String, String> { yield in
      try yield("before")
      let letters = try yield.all(of: inner)
      return "after \(letters)"
    }
    #expect(describe(try outer.step()) == "value before, done false")
    #expect(describe(try outer.step()) == "value 0, done false")
    #expect(describe(try outer.step("abc")) == "value 3, done false")
    #expect(describe(try outer.step("de")) == "value 5, done false")
    #expect(describe(try outer.step()) == "value no input, done false")
    #expect(describe(try outer.throw(Oops("x"))) == "value caught x, done false")
    #expect(describe(try outer.step()) == "value after 5, done true")
  }

  @Test func `a finished inner generator contributes only its result`() throws {
    let inner = Generator<Int, Never, String> { _ in "result" }
    _ = try inner.step()
    let outer = Generator<Int, Never, String> { yield in
      try yield(1)
      return try yield.all(of: inner)
    }
    #expect(outer.next() == 1)
    #expect(describe(try outer.step()) == "value result, done true")
  }

  @Test func `an inner generator that has started continues at its yield`() {
    let inner = naturals()
    #expect(Array(inner.prefix(2)) == [0, 1])
    let outer = co_sequence(of: Int.self) { yield in try yield.all(of: inner) }
    #expect(Array(outer.prefix(3)) == [2, 3, 4])
  }

  @Test func `an inner generator that is delegating itself continues there`() {
    let middle = co_sequence(of: Int.self) { yield in
      try yield.all(of: co_sequence(of: Int.self) { yield in for number in 0..<4 { try yield(number) } })
      try yield(100)
    }
    #expect(middle.next() == 0)
    let outer = co_sequence(of: Int.self) { yield in
      try yield.all(of: middle)
      try yield(200)
    }
    #expect(Array(outer) == [1, 2, 3, 100, 200])
    #expect(middle.isFinished)
  }

  @Test func `the inner generator's failure is thrown by the delegation`() {
    let outer = Generator<String, Never, Void> { yield in
      do {
        try yield.all(
          of: Generator<String, Never, Void> { yield in
            try yield("a")
            throw Oops("inner")
          }
        )
      } catch let failure as Oops {
        try yield("caught \(failure.label)")
      }
    }
    #expect(Array(outer) == ["a", "caught inner"])
  }

  @Test func `closing the outer generator closes the inner one first`() {
    let trace = Trace()
    func nested(_ depth: Int) -> Generator<Int, Never, Void> {
      co_sequence { yield in
        defer { trace("\(depth)") }
        if depth > 0 { try yield.all(of: nested(depth - 1)) } else { try yield.all(of: 0...) }
      }
    }
    let outer = nested(3)
    #expect(Array(outer.prefix(2)) == [0, 1])
    outer.close()
    #expect(trace.all == ["0", "1", "2", "3"])
    #expect(outer.failure == nil)
  }

  @Test func `an inner generator cannot be stepped from elsewhere, nor delegate to itself`() throws {
    let inner = naturals()
    let outer = co_sequence(of: Int.self) { yield in try yield.all(of: inner) }
    _ = outer.next()
    #expect(throws: CoroutineError.self) { try inner.step() }
    #expect(outer.next() == 1)

    var itself: Generator<Int, Never, Void>?
    itself = co_sequence { yield in if let itself { try yield.all(of: itself) } }
    #expect(throws: CoroutineError.self) { try itself?.step() }
    itself = nil
  }

  @Test func `an inner generator with another input type gets no inputs, and its errors pass all the same`() throws {
    let inner = Generator<String, Never, Int> { yield in
      do { try yield("a") } catch let failure as Oops { try yield("caught \(failure.label)") }
      return 7
    }
    let outer = Generator<String, Int, Int> { yield in try yield.all(of: inner) }
    #expect(describe(try outer.step()) == "value a, done false")
    #expect(describe(try outer.throw(Oops("x"))) == "value caught x, done false")
    #expect(describe(try outer.step(3)) == "value 7, done true")
  }

  @Test func `ten thousand levels deep, steps neither use stack nor take longer`() {
    func nested(_ depth: Int) -> Generator<Int, Never, Void> {
      co_sequence(stack: .bytes(16 << 10)) { yield in
        if depth > 0 { try yield.all(of: nested(depth - 1)) } else { for number in 0..<3 { try yield(number) } }
      }
    }
    #expect(Array(nested(10_000)) == [0, 1, 2])
    let dropped = nested(10_000)
    #expect(dropped.next() == 0)
  }

  @Test func `any sequence can be delegated to, element by element`() {
    let outer = co_sequence(of: Int.self) { yield in
      try yield.all(of: [1, 2])
      try yield.all(of: Set([3]))
      try yield.all(of: stride(from: 4, to: 6, by: 1))
    }
    #expect(Array(outer) == [1, 2, 3, 4, 5])
  }
}
