import CProbe
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
      let generator = twoNumbers(from: number)
      // Who hands a generator on, has it on the heap; below the compiler sees that nobody does.
      cprobe_see(Unmanaged.passUnretained(generator).toOpaque())
      total &+= generator.next() ?? -1
    }
    expect(total, equals: count * (count - 1) / 2, "sum of the first numbers")
  }
  suite.row("generator_create_step_drop_local", 1_000_000) { count in
    var total = 0
    for number in 0..<count { total &+= twoNumbers(from: number).next() ?? -1 }
    expect(total, equals: count * (count - 1) / 2, "sum of the first numbers")
  }
  addTrees(to: &suite)
}

@inline(__always)
private func twoNumbers(from number: Int) -> Generator<Int, Never, Void> {
  co_sequence { yield in
    try yield(number)
    try yield(-1)
  }
}

/// Calls its argument with every number of a tree.
private typealias Visitor = ((Int) throws -> Void) throws -> Void

/// Walks over a million nodes: by a visitor, by a generator around the same visitor, and by the two jumps alone that no
/// generator over Boost can do without.
///
/// Each tree is made once: what a round frees, the next would get in another order.
private func addTrees(to suite: inout Suite) {
  var searched: SearchTree?
  addTree("generator_tree", to: &suite) { depth in
    let tree = searched ?? SearchTree.make(depth: depth)
    searched = tree
    return { try tree.visit($0) }
  }
  var packed: Tree?
  addTree("generator_tree_packed", to: &suite) { depth in
    let tree = packed ?? Tree(depth: depth)
    packed = tree
    return { try tree.visit($0) }
  }
}

private func addTree(_ name: String, to suite: inout Suite, _ make: @escaping (_ depth: Int) -> Visitor) {
  let figures = [
    Figure("\(name)_visitor"), Figure(name),
    Figure("\(name)_ratio", unit: "ratio"), Figure("\(name)_floor", unit: "ratio"),
  ]
  suite.figures(figures, 1 << 20, quick: 1 << 14) { count in
    let visit = make(count.trailingZeroBitCount)
    var (visited, yielded) = (0, 0)
    let visiting = try nanoseconds { try visit { visited &+= $0 } }
    let yielding = nanoseconds {
      for number in co_sequence(of: Int.self, { yield in try visit { try yield($0) } }) { yielded &+= number }
    }
    let (jumping, jumped) = bareJumps(visit)
    // A tree of depth d has 2^d - 1 nodes.
    expect(visited, equals: (count - 1) * (count - 2) / 2, "sum of the nodes")
    expect(yielded, equals: visited, "sum of what was yielded")
    expect(jumped, equals: visited, "sum of what the bare jumps gave")
    return [visiting / Double(count), yielding / Double(count), yielding / visiting, jumping / visiting]
  }
}

/// Clears every floating-point flag of the caller's.
private func lowerFlags() {
  // All of them: the macro for that is not imported.
  feclearexcept(-1)
}

/// How long the walk takes with a jump to the consumer and back for every node, and the sum that the consumer got.
private func bareJumps(_ visit: @escaping Visitor) -> (nanoseconds: Double, sum: Int) {
  let walk = Walk(visit)
  let start = Clock.wall.now
  let sum = cprobe_raw_walk(
    { Unmanaged<Walk>.fromOpaque($0.unsafelyUnwrapped).takeUnretainedValue().run() },
    Unmanaged.passUnretained(walk).toOpaque()
  )
  let end = Clock.wall.now
  return (Double(end - start), Int(sum))
}

/// What a C function can be handed.
private final class Walk {
  private let visit: Visitor

  init(_ visit: @escaping Visitor) { self.visit = visit }

  func run() {
    do {
      try visit { cprobe_give(Int64($0)) }
    } catch {
      expect(false, equals: true, "a walk that throws nothing threw \(error)")
    }
  }
}

private func nanoseconds(_ body: () throws -> Void) rethrows -> Double {
  let start = Clock.wall.now
  try body()
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
