// The timers of one scheduler: a hierarchical timing wheel (Varghese and Lauck, 1987). Adding and removing a timer take
// constant time, whatever the number of timers.
//
// Layout.
// - Level 0 has 64 slots of one tick (2^16 ns, 66 µs). Level n has 64 slots of 64^n ticks.
// - A timer lies in the level of the highest bit group in which its tick differs from `elapsed`. Therefore:
//   * every timer of a level is due before every timer of a higher level;
//   * within a level, the slots are due in the order of their index;
//   * the first occupied slot of the lowest occupied level holds the earliest timer.
// - When the time reaches a slot of a higher level, the wheel moves the timers of that slot to lower levels.
//
// Order. A timer fires when the clock has reached its exact deadline: ticks sort timers, they do not round deadlines.
// Timers that are due together fire in the order of their deadlines. Timers with equal deadlines fire in the order of
// adding. A drain that goes idle asks its host for a wake-up at the earliest deadline (Scheduler+Drain.swift); how late
// that may come, QueueTimer.swift and WorkerHost.swift say.
//
// Memory. The slots hold entries that the wheel owns (TimerPool.swift). They do not hold the nodes, which lie on the
// stacks of the waiting coroutines. Moving or firing a timer must not touch the stack of a sleeping coroutine: no
// thread has read that page for a long time, and a read would wait for memory and page tables.
//
// Ownership.
// - The wheel's lock covers everything in this file, because a worker that stole a job may remove the job's timer.
// - Firing touches an entry, its job and the job's frame only under that lock. The owner of a node takes the lock to
//   remove the timer before the owner's frame ends.
// - A node, too, is written only under that lock.
// - An entry belongs to a node only while `TimerEntry.node` is that node. After a timer has fired, its entry may belong
//   to another node by the time the owner removes the timer.

struct TimerWheel: ~Copyable {
  private typealias Entry = UnsafeMutablePointer<TimerEntry>

  private static var levels: Int { 8 }
  private static var tickShift: UInt64 { 16 }

  private var slots: UnsafeMutablePointer<TimerList>?
  private var pool = TimerPool()
  private var occupied = InlineArray<8, UInt64>(repeating: 0)
  /// The tick up to which the wheel has processed every timer.
  private var elapsed: UInt64 = 0
  private(set) var count = 0
  /// The number of timers for which memory is allocated.
  var capacity: Int { pool.total }

  /// Discards the timers that are still queued: they do not fire.
  ///
  /// Every job of a scheduler has ended before the scheduler is released. A call may be held by this wheel alone, so
  /// the wheel releases it.
  deinit {
    guard let slots else { return }
    // A world has a wheel for each executor, and lives for microseconds: an empty wheel is not searched.
    for position in 0..<(count > 0 ? Self.levels * 64 : 0) {
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
    // An empty wheel may jump ahead. That keeps new timers in low levels.
    if count == 0 { elapsed = max(elapsed, now >> Self.tickShift) }
    count += 1
    let contents = TimerEntry(deadline: node.pointee.deadline, effect: node.pointee.effect, node: node)
    link(enter(node, contents))
  }

  /// Takes an entry from the pool for a node, and records it in the node.
  private mutating func enter(_ node: UnsafeMutablePointer<TimerNode>, _ contents: TimerEntry) -> Entry {
    let entry = pool.take(contents)
    node.pointee.entry = entry
    node.pointee.generation = pool.generation
    return entry
  }

  /// Removes a timer in constant time, and returns whether it was still queued.
  mutating func remove(_ node: UnsafeMutablePointer<TimerNode>) -> Bool {
    guard let entry = node.pointee.entry else { return false }
    // The wheel may be released before the node. A timer that has fired or was removed must not refer to an entry.
    node.pointee.entry = nil
    guard node.pointee.generation == pool.generation, entry.pointee.node == node else { return false }
    let position = Int(entry.pointee.slot)
    slots![position].remove(entry)
    if slots![position].first == nil { occupied[position >> 6] &= ~(1 << UInt64(position & 63)) }
    finish(entry)
    return true
  }

  /// Returns a time at which the wheel has work to do, or nil if no timer is queued.
  ///
  /// The time is never later than the earliest deadline.
  func nextEvent() -> UInt64? {
    guard let (level, index) = earliestSlot() else { return nil }
    // A slot of a higher level may hold many timers. Its start is early enough, because its timers are moved then.
    var earliest = UInt64.max
    var entry = slots![level * 64 + index].first
    var checked = 0
    while let current = entry {
      if level > 0 && checked == 8 {
        return max(startOfSlot(level, index) << Self.tickShift, elapsed << Self.tickShift)
      }
      earliest = min(earliest, current.pointee.deadline)
      entry = current.pointee.next
      checked += 1
    }
    return earliest
  }

  /// Removes every timer whose deadline is at most `now`, and passes its effect to `fire`, in order.
  mutating func advance(to now: UInt64, _ fire: (_ effect: TimerNode.Effect, _ deadline: UInt64) -> Void) {
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

  /// Returns the first tick of a slot: `elapsed` with the bit groups from `level` down replaced.
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

  /// Replaces the pool after most timers have gone: the few that remain move together into a pool of their size.
  ///
  /// Called only when every timer is in a slot, that is, when none has been taken out to fire. Not called by `remove`,
  /// which may run on a small stack.
  private mutating func giveBack() {
    guard pool.isMostlyFree(count) else { return }
    let old = exchange(&pool, with: TimerPool(generation: pool.generation &+ 1))
    for position in 0..<Self.levels * 64 where slots![position].first != nil {
      var moving = slots![position].takeAll()
      while let entry = moving.popFirst() {
        // The entry is queued, and the node of a queued entry exists.
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

  /// Fires the due timers of a slot of level 0.
  ///
  /// Returns false if a timer that is not yet due remains.
  private mutating func fireDue(
    _ index: Int,
    _ now: UInt64,
    _ fire: (_ effect: TimerNode.Effect, _ deadline: UInt64) -> Void
  ) -> Bool {
    var due = slots![index].takeDue(now)
    due.sort()
    while let entry = due.popFirst() {
      let (effect, deadline) = (entry.pointee.effect, entry.pointee.deadline)
      finish(entry)
      fire(effect, deadline)
    }
    guard slots![index].first == nil else { return false }
    occupied[0] &= ~(1 << UInt64(index))
    return true
  }
}
