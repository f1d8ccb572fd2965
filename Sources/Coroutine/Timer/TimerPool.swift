internal import CCoroutine

// The entries that the slots of a timer wheel hold. They are small and lie close together. The pool grows with the
// largest number of simultaneous timers, and then allocates nothing more.
//
//   FREE (node nil, linked by next) --take--> QUEUED (node set, in the list of a slot) --give back--> FREE
//
// The wheel's lock covers everything in this file.

/// A queued timer.
struct TimerEntry {
  let deadline: UInt64
  let effect: TimerNode.Effect
  var next: UnsafeMutablePointer<TimerEntry>?
  var previous: UnsafeMutablePointer<TimerEntry>?
  /// The node that owns the entry; nil while the entry is free.
  ///
  /// An address to compare, never to dereference: the node's frame may have ended before a fired entry is used again.
  var node: UnsafeMutablePointer<TimerNode>?
  var slot: Int32 = -1
}

/// The entry pool of one wheel.
struct TimerPool: ~Copyable {
  private var free: UnsafeMutablePointer<TimerEntry>?
  private var blocks: [UnsafeMutablePointer<TimerEntry>] = []
  /// The number of entries, free or queued.
  private(set) var total = 0
  /// The number that identifies the current blocks.
  ///
  /// The memory of an entry of an earlier generation has been freed: its timer has fired or has moved to another entry.
  let generation: UInt32

  /// The number of entries that the pool keeps for reuse.
  static var kept: Int { 4096 }

  init(generation: UInt32 = 0) { self.generation = generation }

  deinit { for block in blocks { block.deallocate() } }

  /// Whether so few entries are in use that the pool should be replaced by a smaller one.
  ///
  /// At this ratio, fifteen timers that have gone have paid for moving each remaining timer.
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

  /// Doubles the pool, starting with one page.
  private mutating func grow() {
    let count = max(64, total)
    let block = UnsafeMutablePointer<TimerEntry>.allocate(capacity: count)
    blocks.append(block)
    total += count
    // An entry is trivial, so fields may be assigned before `take` initialises the whole.
    for index in (0..<count).reversed() { give(back: block + index) }
  }
}

/// A list of entries in the order of adding.
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

  /// Removes the entries that are due at `now`, and returns them in their order.
  mutating func takeDue(_ now: UInt64) -> TimerList {
    var due = TimerList()
    var entry = first
    while let current = entry {
      entry = current.pointee.next
      guard current.pointee.deadline <= now else { continue }
      remove(current)
      due.append(current)
      // The record of a sleeping job has left the caches. Prefetching loads all records in parallel.
      if case .wake(let job, _) = current.pointee.effect { cco_prefetch_lines(job, Int32(CCO_CELL_BYTES) / 64) }
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

  /// Sorts by deadline and keeps the order of entries with equal deadlines.
  ///
  /// A merge sort of runs whose width doubles. It neither recurses nor allocates.
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
