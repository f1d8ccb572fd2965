internal import CCoroutine

// What a timer wheel's slots hold: small entries that lie close together, from a pool that grows with the number of timers at
// once and then allocates nothing more.
//
//   FREE (node nil, linked by next) --take--> QUEUED (node set, in the list of a slot) --give back--> FREE
//
// Everything under the wheel's lock.

/// A queued timer.
struct TimerEntry {
  let deadline: UInt64
  let effect: TimerNode.Effect
  var next: UnsafeMutablePointer<TimerEntry>?
  var previous: UnsafeMutablePointer<TimerEntry>?
  /// Whose it is.
  ///
  /// An address to compare, never to follow: the node's frame may be gone before a fired entry is used again.
  var node: UnsafeMutablePointer<TimerNode>?
  var slot: Int32 = -1
}

/// The entries of one wheel.
struct TimerPool: ~Copyable {
  private var free: UnsafeMutablePointer<TimerEntry>?
  private var blocks: [UnsafeMutablePointer<TimerEntry>] = []
  /// How many entries there are, free or not.
  private(set) var total = 0
  /// Which blocks these are: an entry of an earlier generation is no memory any more, and its timer has fired or has been
  /// given another one.
  let generation: UInt32

  /// So many entries stay for the next time.
  static var kept: Int { 4096 }

  init(generation: UInt32 = 0) { self.generation = generation }

  deinit { for block in blocks { block.deallocate() } }

  /// Whether so few of the entries are in use that a crowd must have gone.
  ///
  /// To move a timer then costs what fifteen have paid for.
  func isMostlyFree(_ used: Int) -> Bool { total > Self.kept && used < total / 16 }

  mutating func take(_ contents: TimerEntry) -> UnsafeMutablePointer<TimerEntry> {
    if free == nil { grow() }
    let entry = free.unsafelyUnwrapped
    free = entry.pointee.next
    entry.initialize(to: contents)
    return entry
  }

  mutating func give(back entry: UnsafeMutablePointer<TimerEntry>) {
    entry.pointee.node = nil
    entry.pointee.next = free
    free = entry
  }

  /// Doubles, from one page on.
  private mutating func grow() {
    let count = max(64, total)
    let block = UnsafeMutablePointer<TimerEntry>.allocate(capacity: count)
    blocks.append(block)
    total += count
    let nothing = TimerNode.Effect.wake(JobRef(bitPattern: 8).unsafelyUnwrapped, WaitEpoch(word: 0))
    for index in (0..<count).reversed() {
      (block + index).initialize(to: TimerEntry(deadline: 0, effect: nothing, next: free))
      free = block + index
    }
  }
}

/// Entries in the order of adding.
struct TimerList {
  typealias Entry = UnsafeMutablePointer<TimerEntry>
  private(set) var first: Entry?
  private var last: Entry?

  mutating func append(_ entry: Entry) {
    entry.pointee.next = nil
    entry.pointee.previous = last
    if let last { last.pointee.next = entry } else { first = entry }
    last = entry
  }

  mutating func remove(_ entry: Entry) {
    let (previous, next) = (entry.pointee.previous, entry.pointee.next)
    if let previous { previous.pointee.next = next } else { first = next }
    if let next { next.pointee.previous = previous } else { last = previous }
  }

  mutating func popFirst() -> Entry? {
    guard let entry = first else { return nil }
    remove(entry)
    return entry
  }

  mutating func takeAll() -> TimerList {
    defer { self = TimerList() }
    return self
  }

  /// Takes out what is due at `now`.
  mutating func takeDue(_ now: UInt64) -> TimerList {
    var due = TimerList()
    var entry = first
    while let current = entry {
      entry = current.pointee.next
      guard current.pointee.deadline <= now else { continue }
      remove(current)
      due.append(current)
      // A sleeper's record has left the caches: all of them are fetched at once instead of one after the other.
      if case .wake(let job, _) = current.pointee.effect { cco_prefetch_lines(job, 6) }
    }
    return due
  }

  private var isSorted: Bool {
    var entry = first
    while let current = entry {
      if let next = current.pointee.next, next.pointee.deadline < current.pointee.deadline { return false }
      entry = current.pointee.next
    }
    return true
  }

  /// By deadlines; what has the same keeps its order.
  ///
  /// A merge sort of runs that double: no recursion, nothing allocated.
  mutating func sort() {
    if isSorted { return }
    var width = 1
    while true {
      var (rest, sorted, runs) = (takeAll(), TimerList(), 0)
      while rest.first != nil {
        var left = rest.takeRun(width)
        var right = rest.takeRun(width)
        runs += 1
        while let one = left.first, let other = right.first {
          let entry = one.pointee.deadline <= other.pointee.deadline ? left.popFirst() : right.popFirst()
          sorted.append(entry.unsafelyUnwrapped)
        }
        while let entry = left.popFirst() { sorted.append(entry) }
        while let entry = right.popFirst() { sorted.append(entry) }
      }
      self = sorted
      if runs <= 1 { return }
      width *= 2
    }
  }

  private mutating func takeRun(_ width: Int) -> TimerList {
    var run = TimerList()
    for _ in 0..<width {
      guard let entry = popFirst() else { break }
      run.append(entry)
    }
    return run
  }
}
