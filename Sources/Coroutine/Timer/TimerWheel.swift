// Timers: a hierarchical timing wheel for each scheduler (Varghese and Lauck, 1987). Adding and calling off are constant
// time whatever the number of timers.
//
// Level 0 has 64 slots of one tick (2^16 ns, 66 µs), level n slots of 64^n ticks. A timer lies in the level of the highest
// bit group in which its tick differs from `elapsed`, so
//   * every timer of a level is due before every timer of a higher level,
//   * in a level, slots are due in the order of their index,
// and the first occupied slot of the lowest occupied level holds the earliest one. When time reaches a slot of a higher
// level its timers are dealt to lower ones. A timer fires when the clock has reached its very deadline: ticks sort, they do
// not round. Timers that fall due together fire in the order of deadlines, then of adding.
//
// What lies in the slots are entries of the wheel's own (TimerPool.swift), not the nodes on the waiting stacks: to deal or to
// fire a timer must not touch the stack of a coroutine that sleeps. Each is a page that nobody has looked at for long, and
// a look would wait for memory and page tables.
//
// Ownership: everything under the wheel's lock, because a job may be called off by a worker that stole it. Firing touches an
// entry, its job and its frame only under that lock; the owner takes the lock to call off before its frame goes. A node is
// written under that lock too. Its entry is its own as long as the entry says so (`TimerEntry.node`): the entry of a timer
// that has fired may belong to another node by the time its owner calls it off.

struct TimerWheel: ~Copyable {
  private typealias Entry = UnsafeMutablePointer<TimerEntry>

  private static var levels: Int { 8 }
  private static var tickShift: UInt64 { 16 }

  private var slots: UnsafeMutablePointer<TimerList>?
  private var pool = TimerPool()
  private var occupied = InlineArray<8, UInt64>(repeating: 0)
  /// The tick up to which everything has been dealt with.
  private var elapsed: UInt64 = 0
  private(set) var count = 0
  /// For how many timers there is memory.
  var capacity: Int { pool.total }

  /// What is still queued will not fire: a job of a scheduler that goes has ended, but a call may be held here alone.
  deinit {
    guard let slots else { return }
    for position in 0..<Self.levels * 64 {
      var entry = slots[position].first
      while let current = entry {
        if case .call(let call) = current.pointee.effect { call.takeRetainedValue().schedulerHasGone() }
        entry = current.pointee.next
      }
    }
    slots.deallocate()
  }

  mutating func add(_ node: UnsafeMutablePointer<TimerNode>, now: UInt64) {
    if slots == nil {
      slots = .allocate(capacity: Self.levels * 64)
      slots!.initialize(repeating: TimerList(), count: Self.levels * 64)
    }
    // With nothing queued the wheel may jump ahead, which keeps timers in low levels.
    if count == 0 { elapsed = max(elapsed, now >> Self.tickShift) }
    count += 1
    let contents = TimerEntry(deadline: node.pointee.deadline, effect: node.pointee.effect, node: node)
    link(enter(node, contents))
  }

  /// An entry of the pool's for a node.
  private mutating func enter(_ node: UnsafeMutablePointer<TimerNode>, _ contents: TimerEntry) -> Entry {
    let entry = pool.take(contents)
    node.pointee.entry = entry
    node.pointee.generation = pool.generation
    return entry
  }

  /// Whether the node was still queued.
  ///
  /// Constant time.
  mutating func remove(_ node: UnsafeMutablePointer<TimerNode>) -> Bool {
    guard let entry = node.pointee.entry else { return false }
    // The wheel may be gone before the node is: what has fired or been called off leads nowhere any more.
    node.pointee.entry = nil
    guard node.pointee.generation == pool.generation, entry.pointee.node == node else { return false }
    let position = Int(entry.pointee.slot)
    slots![position].remove(entry)
    if slots![position].first == nil { occupied[position >> 6] &= ~(1 << UInt64(position & 63)) }
    finish(entry)
    return true
  }

  /// A time at which there is something to do, never later than the earliest deadline; nil when nothing is queued.
  func nextEvent() -> UInt64? {
    guard let (level, index) = earliestSlot() else { return nil }
    // A slot of a higher level may hold many timers: its beginning will do, since its timers are dealt out then.
    var earliest = UInt64.max
    var entry = slots![level * 64 + index].first
    var looked = 0
    while let current = entry {
      if level > 0 && looked == 8 { return max(startOfSlot(level, index) << Self.tickShift, elapsed << Self.tickShift) }
      earliest = min(earliest, current.pointee.deadline)
      entry = current.pointee.next
      looked += 1
    }
    return earliest
  }

  /// Takes out every timer whose deadline is at most `now` and hands what it does to `fire`, in order.
  mutating func advance(to now: UInt64, _ fire: (TimerNode.Effect) -> Void) {
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
    giveBack()
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

  private mutating func link(_ entry: Entry) {
    let tick = max(entry.pointee.deadline >> Self.tickShift, elapsed)
    let difference = tick ^ elapsed
    let level = difference == 0 ? 0 : (63 - difference.leadingZeroBitCount) / 6
    let index = Int((tick >> UInt64(level * 6)) & 63)
    entry.pointee.slot = Int32(level * 64 + index)
    slots![level * 64 + index].append(entry)
    occupied[level] |= 1 << UInt64(index)
  }

  private mutating func finish(_ entry: Entry) {
    pool.give(back: entry)
    count -= 1
  }

  /// Gives back what a crowd has left: the few timers that stay move together into a pool of their size.
  ///
  /// Not while some are in no slot, about to fire; and not by who calls one off, on a stack that may be small.
  private mutating func giveBack() {
    guard pool.isMostlyFree(count) else { return }
    let old = exchange(&pool, with: TimerPool(generation: pool.generation &+ 1))
    for position in 0..<Self.levels * 64 where slots![position].first != nil {
      var moving = slots![position].takeAll()
      while let entry = moving.popFirst() {
        // Queued, so its node is there.
        slots![position].append(enter(entry.pointee.node.unsafelyUnwrapped, entry.pointee))
      }
    }
    _ = consume old
  }

  private mutating func deal(_ level: Int, _ index: Int) {
    var dealt = slots![level * 64 + index].takeAll()
    occupied[level] &= ~(1 << UInt64(index))
    while let entry = dealt.popFirst() { link(entry) }
  }

  /// Fires what is due in a slot of level 0; false when something that is not yet due remains.
  private mutating func fireDue(_ index: Int, _ now: UInt64, _ fire: (TimerNode.Effect) -> Void) -> Bool {
    var due = slots![index].takeDue(now)
    due.sort()
    while let entry = due.popFirst() {
      let effect = entry.pointee.effect
      finish(entry)
      fire(effect)
    }
    guard slots![index].first == nil else { return false }
    occupied[0] &= ~(1 << UInt64(index))
    return true
  }
}
