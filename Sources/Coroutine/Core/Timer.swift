import Synchronization

// Timers: a hierarchical timing wheel for each scheduler (Varghese and Lauck, 1987). Adding and calling off are constant
// time whatever the number of timers, and nothing is allocated: a node lies on the waiting stack.
//
// Level 0 has 64 slots of one tick (2^16 ns, 66 µs), level n slots of 64^n ticks. A node lies in the level of the highest
// bit group in which its tick differs from `elapsed`, so
//   * every node of a level is due before every node of a higher level,
//   * in a level, slots are due in the order of their index,
// and the first occupied slot of the lowest occupied level holds the earliest node. When time reaches a slot of a higher
// level its nodes are dealt to lower ones. A node fires when the clock has reached its very deadline: ticks sort, they do
// not round. Nodes that fall due together fire in the order of deadlines, then of adding.
//
// Ownership: everything under the wheel's lock, because a job may be called off by a lane that stole it. Firing touches a
// node, its job and its frame only under that lock; the owner takes the lock to unlink before its frame goes.

/// One timer, on the stack of whoever waits for it.
@usableFromInline
struct TimerNode {
  enum Effect {
    /// Ends the wait `token` of `job`.
    case wake(JobRef, WaitToken)
    /// Marks a deadline of `job` as passed.
    case expire(JobRef, UnsafeMutablePointer<CancelFrame>)
  }

  var next: UnsafeMutablePointer<TimerNode>?
  var previous: UnsafeMutablePointer<TimerNode>?
  let deadline: UInt64
  let effect: Effect
  var slot: Int16 = -1

  init(deadline: UInt64, effect: Effect) {
    self.deadline = deadline
    self.effect = effect
  }
}

struct TimerWheel: ~Copyable {
  private typealias Node = UnsafeMutablePointer<TimerNode>
  private struct Slot {
    var first: Node?
    var last: Node?
  }

  private static var levels: Int { 8 }
  private static var tickShift: UInt64 { 16 }

  private var slots: UnsafeMutablePointer<Slot>?
  private var occupied = InlineArray<8, UInt64>(repeating: 0)
  /// The tick up to which everything has been dealt with.
  private var elapsed: UInt64 = 0
  private(set) var count = 0

  deinit { slots?.deallocate() }

  mutating func add(_ node: UnsafeMutablePointer<TimerNode>, now: UInt64) {
    if slots == nil {
      slots = .allocate(capacity: Self.levels * 64)
      slots!.initialize(repeating: Slot(), count: Self.levels * 64)
    }
    // With nothing queued the wheel may jump ahead, which keeps nodes in low levels.
    if count == 0 { elapsed = max(elapsed, now >> Self.tickShift) }
    count += 1
    link(node)
  }

  /// Whether the node was still queued.
  ///
  /// Constant time.
  mutating func remove(_ node: UnsafeMutablePointer<TimerNode>) -> Bool {
    guard node.pointee.slot >= 0 else { return false }
    unlink(node)
    count -= 1
    return true
  }

  /// A time at which there is something to do, never later than the earliest deadline; nil when nothing is queued.
  func nextEvent() -> UInt64? {
    guard let (level, index) = earliestSlot() else { return nil }
    // A slot of a higher level may hold many nodes: its beginning will do, since its nodes are dealt out then.
    var earliest = UInt64.max
    var node = slots![level * 64 + index].first
    var looked = 0
    while let current = node {
      if level > 0 && looked == 8 { return max(startOfSlot(level, index) << Self.tickShift, elapsed << Self.tickShift) }
      earliest = min(earliest, current.pointee.deadline)
      node = current.pointee.next
      looked += 1
    }
    return earliest
  }

  /// Takes out every node whose deadline is at most `now` and hands it to `fire`, in order.
  mutating func advance(to now: UInt64, _ fire: (UnsafeMutablePointer<TimerNode>) -> Void) {
    let nowTick = now >> Self.tickShift
    while count > 0, let (level, index) = earliestSlot() {
      let start = startOfSlot(level, index)
      guard start <= nowTick else { break }
      elapsed = max(elapsed, start)
      if level > 0 {
        deal(level, index)
      } else if !fireDue(index, now, fire) {
        break
      }
    }
    elapsed = max(elapsed, nowTick)
  }

  // MARK: Slots

  private func earliestSlot() -> (level: Int, index: Int)? {
    for level in 0..<Self.levels where occupied[level] != 0 { return (level, occupied[level].trailingZeroBitCount) }
    return nil
  }

  /// The first tick of a slot: `elapsed` with the bit groups from `level` down replaced.
  private func startOfSlot(_ level: Int, _ index: Int) -> UInt64 {
    let shift = UInt64(level * 6)
    let above = shift + 6 >= 64 ? 0 : (elapsed >> (shift + 6)) << (shift + 6)
    return above | UInt64(index) << shift
  }

  private mutating func link(_ node: Node) {
    let tick = max(node.pointee.deadline >> Self.tickShift, elapsed)
    let difference = tick ^ elapsed
    let level = difference == 0 ? 0 : (63 - difference.leadingZeroBitCount) / 6
    let index = Int((tick >> UInt64(level * 6)) & 63)
    let slot = slots! + (level * 64 + index)
    node.pointee.slot = Int16(level * 64 + index)
    node.pointee.next = nil
    node.pointee.previous = slot.pointee.last
    if let last = slot.pointee.last { last.pointee.next = node } else { slot.pointee.first = node }
    slot.pointee.last = node
    occupied[level] |= 1 << UInt64(index)
  }

  private mutating func unlink(_ node: Node) {
    let position = Int(node.pointee.slot)
    let slot = slots! + position
    if let previous = node.pointee.previous {
      previous.pointee.next = node.pointee.next
    } else {
      slot.pointee.first = node.pointee.next
    }
    if let next = node.pointee.next {
      next.pointee.previous = node.pointee.previous
    } else {
      slot.pointee.last = node.pointee.previous
    }
    if slot.pointee.first == nil { occupied[position >> 6] &= ~(1 << UInt64(position & 63)) }
    node.pointee.slot = -1
  }

  private mutating func deal(_ level: Int, _ index: Int) {
    let slot = slots! + (level * 64 + index)
    var node = slot.pointee.first
    slot.pointee = Slot()
    occupied[level] &= ~(1 << UInt64(index))
    while let current = node {
      node = current.pointee.next
      link(current)
    }
  }

  /// Fires what is due in a slot of level 0; false when something that is not yet due remains.
  private mutating func fireDue(_ index: Int, _ now: UInt64, _ fire: (Node) -> Void) -> Bool {
    let slot = slots! + index
    var due: [Node] = []
    var isSorted = true
    var node = slot.pointee.first
    while let current = node {
      node = current.pointee.next
      guard current.pointee.deadline <= now else { continue }
      unlink(current)
      count -= 1
      if let last = due.last, last.pointee.deadline > current.pointee.deadline { isSorted = false }
      due.append(current)
    }
    if !isSorted {
      let order = due.enumerated().sorted {
        ($0.element.pointee.deadline, $0.offset) < ($1.element.pointee.deadline, $1.offset)
      }
      due = order.map(\.element)
    }
    for node in due { fire(node) }
    return slot.pointee.first == nil
  }
}
