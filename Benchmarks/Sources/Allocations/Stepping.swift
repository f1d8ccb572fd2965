import Coroutine
import Harness

// Steps of a generator allocate nothing; making one is an object and what its body captures.

func countStepping(into counts: inout Counts) throws {
  let numbers = co_sequence(of: Int.self) { yield in for number in 0... { try yield(number) } }
  try countSteps("generator_next", numbers, into: &counts)
  let nested = co_sequence(of: Int.self) { yield in
    try yield.all(of: co_sequence(of: Int.self) { yield in for number in 0... { try yield(number) } })
  }
  try countSteps("generator_next_delegated", nested, into: &counts)
  let lines = co_sequence(of: (Int, Int, Int, Int, Int, Int, Int, Int).self) { yield in
    for number in 0... { try yield((number, 0, 0, 0, 0, 0, 0, number)) }
  }
  try countSteps("generator_next_64_bytes", lines, into: &counts)
  try counts.countWithin("generator_step_input", 1000) { count in
    let generator = Generator<Int, Int, Int> { yield in
      var total = 0
      while true { total &+= try yield(total) ?? 1 }
    }
    _ = try generator.step()
    return {
      for number in 0..<count {
        guard case .yielded = try generator.step(number) else { fail("the generator ended") }
      }
    }
  }
  try counts.count("generator_create_step_drop", 100) { count in
    for number in 0..<count {
      let generator = co_sequence(of: Int.self) { yield in
        try yield(number)
        try yield(-1)
      }
      expect(generator.next(), equals: number, "first element")
    }
  }
}

/// Counts the steps of one that has begun.
private func countSteps<Element>(
  _ name: String,
  _ generator: Generator<Element, Never, Void>,
  into counts: inout Counts
) throws {
  try counts.countWithin(name, 1000) { count in
    expect(generator.next() != nil, "it goes on")
    return { for _ in 0..<count { expect(generator.next() != nil, "it goes on") } }
  }
}
