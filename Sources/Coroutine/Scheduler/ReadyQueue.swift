public import CCoroutine
public import Synchronization

// What a scheduler's hot path needs, as a plain record: the ready jobs and the idle fibers.
//
// A scheduler of a queue touches its worker on its own turn only. A worker of the shared scheduler can be robbed, so its ready
// jobs (not its fibers) are under `lock`. Jobs become ready only when their stack is switched out, so a thief never takes
// one that still runs.
//
// A queue's jobs run first in, first out. A worker of the shared scheduler, where order is nobody's business, keeps what its
// own coroutines launch apart (LaunchStack.swift), and prefers what has been woken: a tree of coroutines then runs depth
// first and has as many stacks live as it is deep, not as it is wide. Nobody starves: one in `patience` choices goes to
// the other side, and who gives way goes behind them all.

@usableFromInline
struct ReadyQueue: ~Copyable {
  @usableFromInline var queue = JobQueue()
  /// Launched here and not started; of a shared worker only.
  @usableFromInline var launched = LaunchStack()
  /// How often woken jobs went before launched ones, or the other way round.
  @usableFromInline var preferred: UInt8 = 0
  /// The owner's alone, in memory of its own: thieves do not take its cache line along.
  @usableFromInline let stackCache: UnsafeMutablePointer<StackCache>
  @usableFromInline let lock = SpinLock()
  /// Where thieves look; nil for the scheduler of a queue.
  @usableFromInline let workerPool: Unmanaged<WorkerPool>?

  init(workerPool: Unmanaged<WorkerPool>?) {
    self.workerPool = workerPool
    stackCache = .allocate(capacity: 1)
    stackCache.initialize(to: StackCache())
  }

  /// Of so many choices one goes to those that would otherwise wait.
  @usableFromInline static var patience: UInt8 { 16 }

  deinit {
    stackCache.pointee.freeAll()
    stackCache.deinitialize(count: 1)
    stackCache.deallocate()
  }
}

extension UnsafeMutablePointer where Pointee == ReadyQueue {
  /// Read, then used: ThreadSanitizer notes a change behind a field as one of the whole worker, whose queue others use.
  @inlinable var stackCache: UnsafeMutablePointer<StackCache> {
    @inline(__always) get { pointee.stackCache }
  }

  /// Puts a job where `body` does; of a shared worker under its lock, and with an idle worker woken where there is work for two.
  @inlinable @inline(__always)
  func add(_ body: (inout JobQueue, inout LaunchStack) -> Void) {
    guard let workerPool = pointee.workerPool else { return body(&pointee.queue, &pointee.launched) }
    pointee.lock.lock()
    body(&pointee.queue, &pointee.launched)
    let count = pointee.queue.count &+ pointee.launched.count
    pointee.lock.unlock()
    // One ready job will run when the current one parks. More than that is work for an idle worker.
    if count > 1 { workerPool._withUnsafeGuaranteedRef { $0.offerWork() } }
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

  /// A job that a job of this worker has just launched.
  ///
  /// The jobs of a queue run in the order of their launches.
  @inlinable @inline(__always)
  func appendLaunched(_ job: JobRef) {
    let isShared = pointee.workerPool != nil
    add { queue, launched in
      if isShared { launched.push(job) } else { queue.append(job) }
    }
  }

  @inlinable @inline(__always)
  func popFirst() -> JobRef? {
    guard pointee.workerPool != nil else { return pointee.queue.popFirst() }
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    return prefersLaunched() ? pointee.launched.pop() : pointee.queue.popFirst()
  }

  /// The next job, if a switch can go straight to it: it is parked, or has not started and a fiber is free.
  ///
  /// Leaves everything else to the base.
  @inlinable @inline(__always)
  func takeRunnable() -> JobRef? {
    if pointee.workerPool != nil { return takeRunnableLocked() }
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
    guard pointee.workerPool != nil else {
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

  /// Up to half of what is ready, for another worker: what was launched longest ago, because of a tree that is the most, and
  /// then what has been ready longest.
  ///
  /// Under the lock.
  func takeHalf(atLeast minimum: Int, into stolen: inout JobQueue) {
    let count = pointee.queue.count + pointee.launched.count
    guard count >= minimum else { return }
    let wanted = min((count + 1) / 2, 128)
    while stolen.count < wanted, let job = pointee.launched.popOldest() { stolen.append(job) }
    pointee.queue.move(wanted - stolen.count, to: &stolen)
  }

  /// Takes over what another worker had too much of, in the order in which that one would have run it.
  func keep(_ stolen: inout JobQueue) {
    add { queue, launched in
      while let job = stolen.popFirst() {
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
    return pointee.preferred % ReadyQueue.patience == 0
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
      guard let stack = stackCache.pointee.pop(job.pointee.stackClass) else { return false }
      job.pointee.context = stack
    }
    return true
  }

  private func isUnstarted(_ job: JobRef, _ stackClass: UInt8) -> Bool {
    job.pointee.context == nil && job.pointee.stackClass == stackClass
  }
}

/// Idle fibers of a scheduler, most recently used first: their stacks are hot, and starting a job on one is a switch.
@usableFromInline
struct StackCache {
  @usableFromInline typealias StackRunner = UnsafeMutablePointer<cco_context>
  /// By size class; the last stands for sizes beyond the largest, of which there are never any.
  @usableFromInline var first = InlineArray<8, StackRunner?>(repeating: nil)
  @usableFromInline var count = InlineArray<8, Int32>(repeating: 0)

  /// More than the usual burst of parks and finishes, less than would hold memory hostage.
  static var limit: Int32 { 64 }

  init() {}

  @inlinable @inline(__always)
  mutating func pop(_ stackClass: UInt8) -> StackRunner? {
    guard let stack = first[Int(stackClass)] else { return nil }
    first[Int(stackClass)] = stack.pointee.value?.assumingMemoryBound(to: cco_context.self)
    count[Int(stackClass)] &-= 1
    return stack
  }

  /// False: full, the caller frees it.
  mutating func push(_ stack: StackRunner) -> Bool {
    let stackClass = Int(stack.pointee.size_class)
    guard count[stackClass] < Self.limit else { return false }
    stack.pointee.value = UnsafeMutableRawPointer(first[stackClass])
    first[stackClass] = stack
    count[stackClass] &+= 1
    return true
  }

  /// Gives every stack back.
  mutating func freeAll() {
    for stackClass in 0..<7 {
      while let stack = pop(UInt8(stackClass)) { Coroutine.StackRunner.free(stack) }
    }
  }
}
