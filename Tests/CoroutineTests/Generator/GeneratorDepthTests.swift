import Coroutine
import Glibc
import Testing

/// A yield may stand under calls that know nothing of it, C's as well, and the processor's state is the body's own.
@Suite("Generators, at any depth", .timeLimit(.minutes(10)))
struct GeneratorDepthTests {
  /// The comparison for C's sort; a C function captures nothing.
  private final class Question: @unchecked Sendable {
    // Sound because one sort at a time uses it, on one thread.
    static let shared = Question()
    var yield: Yielder<(Int32, Int32), Bool>?
  }

  @Test func `the comparison function of C's qsort yields, and the consumer decides the order`() throws {
    let sorter = Generator<(Int32, Int32), Bool, [Int32]> { yield in
      Question.shared.yield = yield
      defer { Question.shared.yield = nil }
      var numbers: [Int32] = [3, 1, 4, 1, 5, 9, 2, 6]
      qsort(&numbers, numbers.count, MemoryLayout<Int32>.stride) { one, other in
        guard let one = one?.load(as: Int32.self), let other = other?.load(as: Int32.self) else { return 0 }
        let isDescending = (try? Question.shared.yield?((one, other))) ?? false
        return isDescending == true ? 1 : -1
      }
      return numbers
    }
    var step = try sorter.step()
    var questions = 0
    while case .yielded((let one, let other)) = step {
      questions += 1
      step = try sorter.step(one < other)
    }
    guard case .returned(let sorted) = step else { return }
    #expect(sorted == [9, 6, 5, 4, 3, 2, 1, 1])
    #expect(questions >= 7)
  }

  @Test func `a body keeps its rounding mode, and the consumer its own`() {
    let original = fegetround()
    let generator = co_sequence(of: Int32.self) { yield in
      fesetround(upward)
      for _ in 0..<3 { try yield(fegetround()) }
    }
    for _ in 0..<3 {
      #expect(generator.next() == upward)
      #expect(fegetround() == original)
    }
    #expect(generator.next() == nil)
    #expect(fegetround() == original)
    // The next body on the same stack starts with the default mode.
    #expect(co_sequence(of: Int32.self) { yield in try yield(fegetround()) }.next() == original)
  }

  @Test func `a thousand levels of recursion deep`() {
    func descend(_ depth: Int, _ yield: Yielder<Int, Never>) throws {
      try yield(depth)
      if depth < 1_000 { try descend(depth + 1, yield) }
      try yield(-depth)
    }
    let values = Array(co_sequence(of: Int.self) { yield in try descend(1, yield) })
    #expect(values == Array(1...1_000) + (1...1_000).reversed().map { -$0 })
  }
}

#if arch(x86_64)
private let upward: Int32 = 0x800
#else
private let upward: Int32 = 0x40_0000
#endif
