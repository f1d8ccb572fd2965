public import CCoroutine
public import Synchronization

// What a scheduler's hot path needs, as a plain record: the queue of ready jobs and the idle fibers.
//
// A scheduler of a queue touches its lane on its own turn only. A lane of the shared scheduler can be robbed, so its queue
// (not its fibers) is under `lock`. Jobs enter a ready queue only when their stack is switched out, so a thief never
// takes one that still runs.

@usableFromInline
struct Lane: ~Copyable {
  @usableFromInline var queue = RunQueue()
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

  @inlinable @inline(__always)
  func append(_ job: JobRef) {
    guard let group = pointee.group else { return pointee.queue.append(job) }
    pointee.lock.lock()
    pointee.queue.append(job)
    let count = pointee.queue.count
    pointee.lock.unlock()
    // One ready job will run when the current one parks. More than that is work for an idle lane.
    if count > 1 { group._withUnsafeGuaranteedRef { $0.offerWork() } }
  }

  @inlinable @inline(__always)
  func popFirst() -> JobRef? {
    guard pointee.group != nil else { return pointee.queue.popFirst() }
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    return pointee.queue.popFirst()
  }

  /// The next job, if a switch can go straight to it: it is parked, or has not started and a fiber is free.
  ///
  /// Leaves everything else to the base.
  @inlinable @inline(__always)
  func takeRunnable() -> JobRef? {
    if pointee.group != nil { pointee.lock.lock() }
    defer { if pointee.group != nil { pointee.lock.unlock() } }
    guard let job = pointee.queue.first, job.pointee.flags.load(ordering: .acquiring) & JobFlags.foreign == 0 else {
      return nil
    }
    if job.pointee.context == nil {
      guard let fiber = fibers.pointee.pop(job.pointee.stackClass) else { return nil }
      job.pointee.context = fiber
    }
    return pointee.queue.popFirst()
  }

  /// The next job, if it has not started and wants a stack of the given class: it can run right here.
  func takeUnstarted(_ stackClass: UInt8) -> JobRef? {
    if pointee.group != nil { pointee.lock.lock() }
    defer { if pointee.group != nil { pointee.lock.unlock() } }
    guard let job = pointee.queue.first, job.pointee.context == nil, job.pointee.stackClass == stackClass else {
      return nil
    }
    return pointee.queue.popFirst()
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
