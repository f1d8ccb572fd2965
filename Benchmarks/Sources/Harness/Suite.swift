/// What one measurement says about one row: a name, as it is printed, and what the number counts.
package struct Figure: Sendable {
  /// Whose figure it is: ours, or that of a peer that is measured in the same process.
  package let owner: String
  package let name: String
  package let unit: String

  package init(_ name: String, unit: String = "ns", owner: String = "coroutine") {
    self.owner = owner
    self.name = name
    self.unit = unit
  }
}

/// Something that is measured as a whole and yields one or more figures.
package struct Measurement {
  let figures: [Figure]
  let operations: Int
  let quickOperations: Int
  /// Whether each round needs a process that has done nothing before.
  let isFresh: Bool
  let body: (Int) throws -> [Double]
}

/// The rows of a program, in the order in which they run.
package struct Suite {
  private(set) var measurements: [Measurement] = []
  private let standardClock: Clock
  private let owner: String

  package init(_ options: Options, owner: String = "coroutine") {
    standardClock = options.countsProcessorTime ? .processor : .wall
    self.owner = owner
  }

  /// A row: `body` does exactly as many operations as it is told, checks that it did, and its time is divided by them.
  ///
  /// In quick mode there are a fortieth of them, unless `quick` says how many. `clock`: nil is what the command line
  /// says; `owner`: nil is the suite's.
  package mutating func row(
    _ name: String,
    _ operations: Int,
    quick: Int? = nil,
    clock: Clock? = nil,
    owner: String? = nil,
    _ body: @escaping (Int) throws -> Void
  ) {
    let clock = clock ?? standardClock
    figures([Figure(name, owner: owner ?? self.owner)], operations, quick: quick) { count in
      let start = clock.now
      try body(count)
      return [Double(clock.now - start) / Double(count)]
    }
  }

  /// A row whose cost is mostly memory: as `row`, and in rows of their own the minor faults of a thousand operations,
  /// and the largest resident memory of the process so far, divided by the operations.
  package mutating func memoryRow(_ name: String, _ operations: Int, _ body: @escaping (Int) throws -> Void) {
    let clock = standardClock
    let all = [
      Figure(name, owner: owner), Figure(name + "_faults", unit: "per 1000", owner: owner),
      Figure(name + "_peak_bytes", unit: "bytes", owner: owner),
    ]
    figures(all, operations) { count in
      let (faults, start) = (Memory.minorFaults, clock.now)
      try body(count)
      let time = clock.now - start
      let each = 1 / Double(count)
      return [Double(time) * each, Double(Memory.minorFaults - faults) * 1_000 * each, Double(Memory.peak) * each]
    }
  }

  /// Several rows that come out of one measurement, or one whose number is no time divided by a count: `body` answers
  /// the numbers in the order of `figures`.
  ///
  /// `fresh`: each round runs in a process of its own, because the first round is what counts (memory that has been
  /// touched once is cheaper ever after).
  package mutating func figures(
    _ figures: [Figure],
    _ operations: Int,
    quick: Int? = nil,
    fresh: Bool = false,
    _ body: @escaping (Int) throws -> [Double]
  ) {
    measurements.append(
      Measurement(
        figures: figures,
        operations: operations,
        quickOperations: quick ?? max(1, operations / 40),
        isFresh: fresh,
        body: body
      )
    )
  }
}
