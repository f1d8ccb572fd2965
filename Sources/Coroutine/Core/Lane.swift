public import CCoroutine
public import Synchronization

// What a scheduler's hot path needs, as a plain record: the ready jobs and the idle fibers.
//
// A scheduler of a queue touches its lane on its own turn only. A lane of the shared scheduler can be robbed, so its ready
// jobs (not its fibers) are under `lock`. Jobs become ready only when their stack is switched out, so a thief never takes
// one that still runs.
//
// A queue's jobs run first in, first out. A lane of the shared scheduler, where order is nobody's business, keeps what its
// own coroutines launch apart (LaunchStack.swift), and prefers what has been woken: a tree of coroutines then runs depth
// first and has as many stacks live as it is deep, not as it is wide. Nobody starves: one in `patience` choices goes to
// the other side, and who gives way goes behind them all.

@usableFromInline
struct Lane: ~Copyable {
  @usableFromInline var queue = RunQueue()
  /// Launched here and not started; of a shared lane only.
  @usableFromInline var launched = LaunchStack()
  /// How often woken jobs went before launched ones, or the other way round.
  @usableFromInline var preferred: UInt8 = 0
  /// The owner's alone, in memory of its own: thieves do not take its cache line along.
  @usableFromInline let fiberCache: UnsafeMutablePointer<FiberCache>
  @usableFromInline let lock = SpinLock()
  /// Where thieves look; nil for the scheduler of a queue.
  @usableFromInline let group: Unmanaged<LaneGroup>?

  init(group: Unmanaged<LaneGroup>?) {
    self.group = group
    fiberCache = .allocate(capacity: 1)
    fiberCache.initialize(to: FiberCache())
  }

  /// Of so many choices one goes to those that would otherwise wait.
  @usableFromInline static var patience: UInt8 { 16 }

  deinit {
    fiberCache.pointee.freeAll()
    fiberCache.deinitialize(count: 1)
    fiberCache.deallocate()
  }
}

extension UnsafeMutablePointer where Pointee == Lane {
  /// Read, then used: ThreadSanitizer notes a change behind a field as one of the whole lane, whose queue others use.
  @inlinable var fibers: UnsafeMutablePointer<FiberCache> {
    @inline(__always) get { pointee.fiberCache }
  }

  /// Puts a job where `body` does; of a shared lane under its lock, and with an idle lane woken where there is work for two.
  @inlinable @inline(__always)
  func add(_ body: (inout RunQueue, inout LaunchStack) -> Void) {
    guard let group = pointee.group else { return body(&pointee.queue, &pointee.launched) }
    pointee.lock.lock()
    body(&pointee.queue, &pointee.launched)
    let count = pointee.queue.count &+ pointee.launched.count
    pointee.lock.unlock()
    // One ready job will run when the current one parks. More than that is work for an idle lane.
    if count > 1 { group._withUnsafeGuaranteedRef { $0.offerWork() } }
  }

  /// A job that has been woken, or comes from elsewhere: to the back.
  @inlinable @inline(__always)
  func append(_ job: JobRef) {
    add { queue, _ in queue.append(job) }
  }

  /// A job that gives way: behind everything that is ready now, launched or woken.
  @usableFromInline
  func appendYielded(_ job: JobRef) {
    add { queue, launched in
      launched.moveAll(to: &queue)
      queue.append(job)
    }
  }

  /// A job that a job of this lane has just launched.
  ///
  /// The jobs of a queue run in the order of their launches.
  @inlinable @inline(__always)
  func appendLaunched(_ job: JobRef) {
    let isShared = pointee.group != nil
    add { queue, launched in
      if isShared { launched.push(job) } else { queue.append(job) }
    }
  }

  @inlinable @inline(__always)
  func popFirst() -> JobRef? {
    guard pointee.group != nil else { return pointee.queue.popFirst() }
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    return prefersLaunched() ? pointee.launched.pop() : pointee.queue.popFirst()
  }

  /// The next job, if a switch can go straight to it: it is parked, or has not started and a fiber is free.
  ///
  /// Leaves everything else to the base.
  @inlinable @inline(__always)
  func takeRunnable() -> JobRef? {
    if pointee.group != nil { return takeRunnableLocked() }
    guard let job = pointee.queue.first, mayRun(job) else { return nil }
    defer { pointee.queue.prefetch() }
    return pointee.queue.popFirst()
  }

  @usableFromInline
  func takeRunnableLocked() -> JobRef? {
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    guard prefersLaunched() else {
      guard let job = pointee.queue.first, mayRun(job) else { return nil }
      defer { pointee.queue.prefetch() }
      return pointee.queue.popFirst()
    }
    guard let job = pointee.launched.next, mayRun(job) else {
      repeatChoice()
      return nil
    }
    return pointee.launched.pop()
  }

  /// The next job, if it has not started and wants a stack of the given class: it can run right here.
  func takeUnstarted(_ stackClass: UInt8) -> JobRef? {
    guard pointee.group != nil else {
      guard let job = pointee.queue.first, isUnstarted(job, stackClass) else { return nil }
      return pointee.queue.popFirst()
    }
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    guard prefersLaunched() else {
      guard let job = pointee.queue.first, isUnstarted(job, stackClass) else { return nil }
      return pointee.queue.popFirst()
    }
    guard let job = pointee.launched.next, isUnstarted(job, stackClass) else {
      repeatChoice()
      return nil
    }
    return pointee.launched.pop()
  }

  /// Up to half of what is ready, for another lane: what was launched longest ago, because of a tree that is the most, and
  /// then what has been ready longest.
  ///
  /// Under the lock.
  func takeHalf(atLeast minimum: Int, into loot: inout RunQueue) {
    let count = pointee.queue.count + pointee.launched.count
    guard count >= minimum else { return }
    let wanted = min((count + 1) / 2, 128)
    while loot.count < wanted, let job = pointee.launched.popOldest() { loot.append(job) }
    pointee.queue.move(wanted - loot.count, to: &loot)
  }

  /// Takes over what another lane had too much of, in the order in which that one would have run it.
  func keep(_ loot: inout RunQueue) {
    add { queue, launched in
      while let job = loot.popFirst() {
        if job.pointee.context == nil { launched.pushFirst(job) } else { queue.append(job) }
      }
    }
  }

  /// Whether the next job is a launched one.
  ///
  /// Under the lock.
  @inlinable @inline(__always)
  func prefersLaunched() -> Bool {
    if pointee.launched.isEmpty { return false }
    if pointee.queue.isEmpty { return true }
    pointee.preferred &+= 1
    return pointee.preferred % Lane.patience == 0
  }

  /// A launched job was chosen and cannot run here: the next to ask, the base at last, gets the same answer.
  @usableFromInline
  func repeatChoice() {
    if !pointee.queue.isEmpty { pointee.preferred &-= 1 }
  }

  @inlinable @inline(__always)
  func mayRun(_ job: JobRef) -> Bool {
    guard job.pointee.flags.load(ordering: .acquiring) & JobFlags.foreign == 0 else { return false }
    if job.pointee.context == nil {
      guard let fiber = fibers.pointee.pop(job.pointee.stackClass) else { return false }
      job.pointee.context = fiber
    }
    return true
  }

  private func isUnstarted(_ job: JobRef, _ stackClass: UInt8) -> Bool {
    job.pointee.context == nil && job.pointee.stackClass == stackClass
  }
}

/// Idle fibers of a scheduler, most recently used first: their stacks are hot, and starting a job on one is a switch.
@usableFromInline
struct FiberCache {
  @usableFromInline typealias Fiber = UnsafeMutablePointer<cco_context>
  /// By size class; the last stands for sizes beyond the largest, of which there are never any.
  @usableFromInline var first = InlineArray<8, Fiber?>(repeating: nil)
  @usableFromInline var count = InlineArray<8, Int32>(repeating: 0)

  /// More than the usual burst of parks and finishes, less than would hold memory hostage.
  static var limit: Int32 { 64 }

  init() {}

  @inlinable @inline(__always)
  mutating func pop(_ stackClass: UInt8) -> Fiber? {
    guard let fiber = first[Int(stackClass)] else { return nil }
    first[Int(stackClass)] = fiber.pointee.value?.assumingMemoryBound(to: cco_context.self)
    count[Int(stackClass)] &-= 1
    return fiber
  }

  /// False: full, the caller frees it.
  mutating func push(_ fiber: Fiber) -> Bool {
    let stackClass = Int(fiber.pointee.size_class)
    guard count[stackClass] < Self.limit else { return false }
    fiber.pointee.value = UnsafeMutableRawPointer(first[stackClass])
    first[stackClass] = fiber
    count[stackClass] &+= 1
    return true
  }

  /// Gives every stack back.
  mutating func freeAll() {
    for stackClass in 0..<7 {
      while let fiber = pop(UInt8(stackClass)) { Coroutine.Fiber.free(fiber) }
    }
  }
}
