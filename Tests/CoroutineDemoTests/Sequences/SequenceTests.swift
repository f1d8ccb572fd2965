#if Demo
import Coroutine
import Testing

@testable import CoroutineDemo

@Suite struct `Sequences of the demo` {
  @Test func `permutations are all there, each once, and computed as they are asked for`() {
    let orders = Array(permutations(of: [1, 2, 3, 4]))
    #expect(orders.count == 24)
    #expect(Set(orders).count == 24)
    #expect(orders.allSatisfy { $0.sorted() == [1, 2, 3, 4] })
    // All permutations of twenty-five values would take for ever.
    #expect(permutations(of: Array(1...25)).next() == Array(1...25))
    #expect(Array(permutations(of: [Int]())) == [[]])
  }

  @Test(arguments: [
    ("a", "a", true, 1), ("ab", "a", false, 2), ("abcdefgh", "abcdefgh", true, 8), ("ab", "bb", false, 1),
  ])
  func `fringes are compared up to the first difference`(one: String, other: String, isSame: Bool, looks: Int) throws {
    let left = try #require(Tree.leaningLeft(one))
    let right = try #require(Tree.leaningRight(other))
    #expect(compareFringes(left, right) == (isSame, looks))
    #expect(String(right.fringe) == other)
  }

  @Test func `Fibonacci numbers end with the last one that fits`() {
    let numbers = Array(fibonacci())
    #expect(numbers.count == 93)
    #expect(numbers.last == 7_540_113_804_746_346_429)
  }
}
#endif
