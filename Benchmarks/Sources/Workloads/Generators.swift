import Coroutine
import Driving
import Glibc
import Harness

// Sequences, pulled by generic code of another module than the library's: there specialisation is lost, if anywhere.

func addGenerators(to suite: inout Suite) {
  suite.row("generator_next", 5_000_000) { count in
    lowerFlags()
    expect(sum(of: numbers(below: count)), equals: count * (count - 1) / 2, "sum of the numbers")
  }
  // The body raises a flag that the consumer does not have.
  suite.row("generator_next_sticky", 5_000_000) { count in
    let generator = co_sequence(of: Int.self) { yield in
      blackHole(1 / Double(count))
      for number in 0..<count { try yield(number) }
    }
    lowerFlags()
    expect(sum(of: generator), equals: count * (count - 1) / 2, "sum of the numbers")
  }
  suite.row("generator_next_in_job", 5_000_000) { count in
    let total = try onQueue { sum(of: numbers(below: count)) }
    expect(total, equals: count * (count - 1) / 2, "sum of the numbers")
  }
  suite.row("generator_next_64_bytes", 5_000_000) { count in
    let generator = co_sequence(of: CacheLine.self) { yield in
      for number in 0..<count { try yield(CacheLine(number)) }
    }
    expect(generator.reduce(0) { $0 &+ $1.first &+ $1.last }, equals: 0, "sum of opposites")
  }
  suite.row("generator_step_input", 5_000_000) { count in
    let generator = Generator<Int, Int, Int> { yield in
      var total = 0
      for number in 0..<count { total &+= try yield(number) ?? 0 }
      return total
    }
    // The first input has no yield to go to, and the last yield's comes with the step that ends it.
    expect(try answer(to: generator), equals: count * (count - 1) / 2, "sum of the inputs")
  }
  suite.row("generator_create_step_drop", 1_000_000) { count in
    var total = 0
    for number in 0..<count {
      let generator = co_sequence(of: Int.self) { yield in
        try yield(number)
        try yield(-1)
      }
      total &+= generator.next() ?? -1
    }
    expect(total, equals: count * (count - 1) / 2, "sum of the first numbers")
  }
  addTree(to: &suite)
}

/// A walk over a million nodes, by a visitor and by a generator around the same visitor.
private func addTree(to suite: inout Suite) {
  let figures = [
    Figure("tree_visitor"), Figure("generator_tree"), Figure("generator_tree_ratio", unit: "ratio"),
  ]
  suite.figures(figures, 1 << 20, quick: 1 << 14) { count in
    let tree = Tree(depth: count.trailingZeroBitCount)
    var (visited, yielded) = (0, 0)
    let visiting = nanoseconds { tree.visit { visited &+= $0 } }
    let yielding = nanoseconds {
      for number in co_sequence(of: Int.self, { yield in try tree.visit { try yield($0) } }) { yielded &+= number }
    }
    // A tree of depth d has 2^d - 1 nodes.
    expect(visited, equals: (count - 1) * (count - 2) / 2, "sum of the nodes")
    expect(yielded, equals: visited, "sum of what was yielded")
    return [visiting / Double(count), yielding / Double(count), yielding / visiting]
  }
}

/// Clears every floating-point flag of the caller's.
private func lowerFlags() {
  // All of them: the macro for that is not imported.
  feclearexcept(-1)
}

private func nanoseconds(_ body: () -> Void) -> Double {
  let start = Clock.wall.now
  body()
  return Double(Clock.wall.now - start)
}

/// Not inlined, so that making the generator and pulling from it are not optimised together.
@inline(never)
private func numbers(below count: Int) -> Generator<Int, Never, Void> {
  co_sequence { yield in for number in 0..<count { try yield(number) } }
}

@inline(never)
private func sum<Numbers: Sequence>(of numbers: Numbers) -> Numbers.Element
where Numbers.Element: FixedWidthInteger {
  var sum: Numbers.Element = 0
  for number in numbers { sum &+= number }
  return sum
}

/// Sends each number back to where it came from.
@inline(never)
private func answer<Number: FixedWidthInteger>(to generator: Generator<Number, Number, Number>) throws -> Number {
  var step = try generator.step()
  while case .yielded(let number) = step { step = try generator.step(number) }
  guard case .returned(let result) = step else { return 0 }
  return result
}

/// 64 bytes.
private struct CacheLine {
  let first: Int
  private let rest: (Int, Int, Int, Int, Int, Int)
  let last: Int

  init(_ number: Int) {
    first = number
    rest = (number, number, number, number, number, number)
    last = -number
  }
}
