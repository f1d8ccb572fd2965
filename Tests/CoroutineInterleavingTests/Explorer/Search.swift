/// The search through the schedules of a model: what has been decided, and what comes next.
///
/// A plain record behind a pointer, because a debug build looks at it some ten million times.
struct Search {
  /// One decision of an execution: the thread that was chosen, and those that have not been tried in its place.
  struct Decision {
    var thread: Int
    var untried: UInt
  }

  static var none: Int { -1 }
  /// More decisions than any model needs: an execution that reaches this number repeats itself for ever.
  static var mostDecisions: Int { 1_000 }
  static var mostThreads: Int { 8 }

  /// The thread that runs; `none`: set-up, final checks.
  var running = Search.none
  /// How many preemptions an execution may have, and has had.
  var bound = 0
  var preemptions = 0
  /// How many decisions the execution has made, of those in `path`.
  var depth = 0
  var length = 0
  let path = UnsafeMutablePointer<Decision>.allocate(capacity: Search.mostDecisions)
  /// The threads that have not ended, a bit each.
  var live: UInt = 0
  var count = 0
  /// What keeps each thread waiting: it cannot run while the byte is not 0.
  let gates = UnsafeMutablePointer<UnsafePointer<UInt8>?>.allocate(capacity: Search.mostThreads)

  func free() {
    path.deallocate()
    gates.deallocate()
  }

  mutating func begin() {
    running = Self.none
    preemptions = 0
    depth = 0
    live = 0
    count = 0
  }

  mutating func addThread() {
    gates[count] = nil
    live |= 1 << UInt(count)
    count += 1
  }

  var isTooLong: Bool { depth == Self.mostDecisions }

  /// The thread that performs the next operation; none: no thread can.
  mutating func choose() -> Int {
    var enabled = live
    var index = 0
    while index < count {
      if let gate = gates[index], gate.pointee != 0 { enabled &= ~(1 << UInt(index)) }
      index += 1
    }
    if enabled == 0 || isTooLong { return Self.none }
    let canContinue = running != Self.none && enabled & 1 << UInt(running) != 0
    if depth == length {
      let first = canContinue ? running : enabled.trailingZeroBitCount
      let others = canContinue && preemptions == bound ? 0 : enabled & ~(1 << UInt(first))
      path[length] = Decision(thread: first, untried: others)
      length += 1
    }
    let thread = path[depth].thread
    depth += 1
    if canContinue, thread != running { preemptions += 1 }
    return thread
  }

  /// Prepares the next execution, in which the last decision that has an alternative takes it.
  ///
  /// Returns false if no decision has one.
  mutating func backtrack() -> Bool {
    while length > 0 {
      let untried = path[length - 1].untried
      if untried != 0 {
        path[length - 1] = Decision(thread: untried.trailingZeroBitCount, untried: untried & (untried - 1))
        return true
      }
      length -= 1
    }
    return false
  }
}
