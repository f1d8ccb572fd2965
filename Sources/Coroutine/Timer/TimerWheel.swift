internal import CCoroutine
internal import CCoroutineRuntime
import Synchronization

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
// adding. A drain that goes idle asks its host for a wake-up at the earliest deadline (Scheduler.swift); how late
// that may come, QueueHost.swift and WorkerHost.swift say.
//
// Memory. The slots hold entries that the wheel owns. They do not hold the nodes, which lie on the stacks of waiting
// coroutines. Moving or firing a timer must not touch the stack of a sleeping coroutine: no thread has read that page
// for a long time, and a read would wait for memory and page tables.
//
// Ownership.
// - The wheel's lock covers the wheel, its entries and the nodes: a worker that stole a job may remove the job's timer.
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

// MARK: - The entries

// The entries that the slots of the wheel hold. They are small and lie close together. The pool grows with the
// largest number of simultaneous timers, and then allocates nothing more.
//
//   FREE (node nil, linked by next) --take--> QUEUED (node set, in the list of a slot) --give back--> FREE
//
// The wheel's lock covers all entries.

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

// MARK: - A timer as its owner sees it

/// One timer, stored on the stack of the waiting coroutine or in a `TimerCall`.
@usableFromInline
struct TimerNode {
  enum Effect {
    /// Ends the wait `epoch` of `job`.
    case wake(JobRef, WaitEpoch)
    /// Marks a deadline of `job` as expired.
    case expire(JobRef, UnsafeMutablePointer<CancelFrame>)
    /// Calls `fire`, outside every lock. The wheel holds the call.
    case call(Unmanaged<TimerCall>)
  }

  let deadline: UInt64
  fileprivate(set) var effect: Effect
  /// The wheel's entry for this timer, from `add` until the timer is removed.
  ///
  /// Once the timer has fired, the entry is free or belongs to another node.
  var entry: UnsafeMutablePointer<TimerEntry>?
  /// The generation of the pool when `entry` was taken.
  var generation: UInt32 = 0

  init(deadline: UInt64, effect: Effect) {
    self.deadline = deadline
    self.effect = effect
  }

  /// Creates the timer of a job whose wait has not begun; `add(_:waking:now:)` sets the epoch.
  init(deadline: UInt64, _ job: JobRef) { self.init(deadline: deadline, effect: .wake(job, .none)) }
}

extension Scheduler {
  /// Starts a timer that ends the wait that has just begun, which `epoch` names.
  func add(_ node: UnsafeMutablePointer<TimerNode>, waking epoch: WaitEpoch, now: UInt64) {
    if case .wake(let job, _) = node.pointee.effect { node.pointee.effect = .wake(job, epoch) }
    add(node, now: now)
  }
}

/// A timer that belongs to no job, in an object of its own.
@usableFromInline
class TimerCall: @unchecked Sendable {
  // Sound because the node is accessed only under the wheel's lock.
  let node: UnsafeMutablePointer<TimerNode>
  @exclusivity(unchecked) private var scheduler: Unmanaged<Scheduler>?

  init() { node = .allocate(capacity: 1) }

  deinit { node.deallocate() }

  /// Called once, by the scheduler's drain, unless the timer was stopped before.
  func fire() {}

  /// Starts the timer.
  ///
  /// Called once, by the creator. Inside a simulation the timer runs on virtual time. Outside, it runs on one of the
  /// shared workers, which live for ever. In a world with hosts, `isLocal` says whether the clock of the creator's host
  /// measures the duration, or the world's.
  final func start(_ duration: Duration, isLocal: Bool = true) {
    let caller = Carrier.current?.callerScheduler?.takeUnretainedValue()
    let own = caller.flatMap { $0.host.schedulerOfTimers($0) }
    ForkedChild.noteUse()
    let scheduler = own ?? WorkerPool.shared.nextWorker()
    let now = scheduler.clock
    let nanoseconds = duration.nanoseconds
    let deadline =
      isLocal ? scheduler.deadline(nanoseconds, after: now) : Duration.deadline(nanoseconds, after: now)
    start(at: deadline, on: scheduler, now)
  }

  /// Starts the timer for a time of the clock of `scheduler`, which is `now`; called once, by the creator.
  final func start(at deadline: UInt64, on scheduler: Scheduler, _ now: UInt64) {
    // The scheduler would not queue the timer, and nothing would release this object.
    if deadline == Duration.never { return }
    self.scheduler = Unmanaged.passUnretained(scheduler)
    let effect = TimerNode.Effect.call(Unmanaged.passRetained(self))
    node.initialize(to: TimerNode(deadline: deadline, effect: effect))
    scheduler.add(node, now: now)
  }

  /// Called when the scheduler is released: the timer will not fire, and `stop` has nothing to remove.
  ///
  /// Of the schedulers on which `start` puts timers, only a world's is ever released, on the thread that drives it. A
  /// queue's scheduler is released as well, but has no timer of this kind.
  final func schedulerHasGone() { scheduler = nil }

  /// Stops the timer if it has not fired.
  ///
  /// Called on any thread, after `start`.
  final func stop() {
    guard let scheduler, scheduler._withUnsafeGuaranteedRef({ $0.take(node) }) else { return }
    Unmanaged.passUnretained(self).release()
  }
}

// MARK: - The wake-up of a drain

/// The message that makes a scheduler's drain read the clock.
final class TimerWakeup: @unchecked Sendable {
  // Sound because only the inbox that holds the item accesses it, and the other fields are atomic.
  @exclusivity(unchecked) private var storage = WorkItem { _ in }
  let isPending = Atomic<Bool>(false)
  /// Whether the host's timer sent the message, and not a thread that added a timer.
  let isFromHost = Atomic<Bool>(false)

  init() { checkAddress(item, of: &storage) }

  var item: UnsafeMutablePointer<WorkItem> { propertyAddress(in: self, at: 0, as: WorkItem.self) }

  /// The message.
  ///
  /// It retains this object until it is handled.
  var message: Inbox.Message {
    _ = Unmanaged.passRetained(self)
    return .work(item)
  }
}

extension Scheduler {
  /// Called on the host when the host's timer has fired.
  ///
  /// It sends a message and does not inspect the wheel. On a concurrent queue a drain may be running and about to go
  /// idle, and only a message keeps that drain from going idle.
  func hostTimerFired() {
    timerWakeup.isFromHost.store(true, ordering: .releasing)
    guard !timerWakeup.isPending.exchange(true, ordering: .acquiringAndReleasing) else { return }
    if inbox.push(timerWakeup.message) { drain() }
  }

  /// Sends the message from any thread.
  func sendTimerWakeup() {
    if timerWakeup.isPending.exchange(true, ordering: .acquiringAndReleasing) {
      if mayBeLeft { submitWhatIsLeft() }
      return
    }
    push(timerWakeup.message)
    if mayBeLeft { submitWhatIsLeft() }
  }

  /// Handles the message on the scheduler itself, in its drain.
  func timerWakeupArrived() {
    _ = timerWakeup.isPending.exchange(false, ordering: .acquiringAndReleasing)
    if timerWakeup.isFromHost.exchange(false, ordering: .acquiringAndReleasing) { host.hasWoken() }
    Unmanaged.passUnretained(timerWakeup).release()
  }
}
