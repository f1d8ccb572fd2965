public import CCoroutine
public import CCoroutineRuntime
import Synchronization

// The ready jobs and the idle stacks of a scheduler.
//
// The scheduler of a queue accesses its record on its own carrier only. Other workers may steal from a worker of the
// shared scheduler, so its ready jobs (not its stacks) are accessed under `lock`. Jobs become ready only after their
// stack is switched out, so a running job is never stolen.
//
// The jobs of a queue run first in, first out. A worker of the shared scheduler promises no order. It has a separate
// list of the jobs that its own coroutines launch (LaunchStack), and prefers woken jobs. So a tree of coroutines
// runs depth first, and the number of its live stacks is its depth, not its width. There is no starvation: one in
// `fairnessInterval` choices takes from the other list, and a yielding job goes behind all jobs.

@usableFromInline
struct ReadyQueue: ~Copyable {
  @usableFromInline var queue = JobQueue()
  /// The jobs that were launched here and have not started; used by a shared worker only.
  @usableFromInline var launched = LaunchStack()
  /// The number of choices between woken and launched jobs so far, with wrap-around.
  @usableFromInline var preferred: UInt8 = 0
  /// The marks for stealing workers, usually 0; written by the owner, under the lock.
  @usableFromInline var marks: UInt8 = 0
  /// Used by the owner only, in memory of its own: stealing threads do not move its cache line.
  @usableFromInline let stackCache: UnsafeMutablePointer<StackCache>
  @usableFromInline let lock = SpinLock()
  /// The pool of workers that may steal; nil for the scheduler of a queue.
  @usableFromInline let workerPool: Unmanaged<WorkerPool>?

  init(workerPool: Unmanaged<WorkerPool>?) {
    self.workerPool = workerPool
    stackCache = .allocate(capacity: 1)
    stackCache.initialize(to: StackCache())
  }

  /// The mark of a queue that idle workers leave alone, because a batch of events has filled it
  /// (Scheduler.swift).
  @usableFromInline static var held: UInt8 { 1 }
  /// The mark of a queue that may contain jobs which keep their thread (Carrier.swift).
  @usableFromInline static var kept: UInt8 { 2 }
  var isHeld: Bool { marks & Self.held != 0 }

  /// The number of choices of which one takes a job that would otherwise wait.
  @usableFromInline static var fairnessInterval: UInt8 { 16 }

  deinit {
    stackCache.pointee.freeAll()
    stackCache.deinitialize(count: 1)
    stackCache.deallocate()
  }
}

extension UnsafeMutablePointer where Pointee == ReadyQueue {
  /// Loaded before use: ThreadSanitizer records a change behind a field as a change of the whole record, whose queue
  /// others use.
  @inlinable var stackCache: UnsafeMutablePointer<StackCache> {
    @inline(__always) get { pointee.stackCache }
  }

  /// Adds jobs by `body`; for a shared worker under its lock, and wakes an idle worker if there is work for two.
  @inlinable @inline(__always)
  func add(_ body: (inout JobQueue, inout LaunchStack) -> Void) {
    guard let workerPool = pointee.workerPool else { return body(&pointee.queue, &pointee.launched) }
    pointee.lock.lock()
    body(&pointee.queue, &pointee.launched)
    let count = pointee.queue.count &+ pointee.launched.count
    pointee.marks &= ReadyQueue.kept
    pointee.lock.unlock()
    // One ready job will run when the current one parks. More than that is work for an idle worker.
    if count > 1 { workerPool._withUnsafeGuaranteedRef { $0.offerWork() } }
  }

  /// Adds a job that was woken, or that comes from another scheduler, at the back.
  @inlinable @inline(__always)
  func append(_ job: JobRef) {
    add { queue, _ in queue.append(job) }
  }

  /// Adds a batch of woken jobs without waking an idle worker, and returns the number of ready jobs.
  ///
  /// Called by a shared worker.
  func appendHeld(_ batch: inout JobQueue) -> Int {
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    if let first = batch.first, let last = batch.last { pointee.queue.append(first, through: last, batch.count) }
    batch = JobQueue()
    pointee.marks |= ReadyQueue.held
    return pointee.queue.count &+ pointee.launched.count
  }

  /// Ends a hold, and wakes an idle worker if there is work for two.
  func endHold() {
    // Read without the lock, because only the owner writes it.
    if pointee.isHeld { add { _, _ in } }
  }

  /// Sets or clears the mark of a queue that may contain jobs which keep their thread.
  func markKept(_ isKept: Bool) {
    pointee.lock.lock()
    if isKept { pointee.marks |= ReadyQueue.kept } else { pointee.marks &= ReadyQueue.held }
    pointee.lock.unlock()
  }

  /// Adds a yielding job behind everything that is ready now, launched or woken.
  @usableFromInline
  func appendYielded(_ job: JobRef) {
    add { queue, launched in
      launched.moveAll(to: &queue)
      queue.append(job)
    }
  }

  /// Adds a job that a job of this worker has just launched.
  ///
  /// The jobs of a queue run in the order of their launches.
  @inlinable @inline(__always)
  func appendLaunched(_ job: JobRef) {
    let isShared = pointee.workerPool != nil
    add { queue, launched in
      if isShared { launched.push(job) } else { queue.append(job) }
    }
  }

  /// Takes the next job.
  @inlinable @inline(__always)
  func popFirst() -> JobRef? { take { _ in true } }

  /// Prefetches the record of the next job, for the driver of a queue: after a burst of launches or timers it is cold.
  ///
  /// On a worker others use the list at the same time, and the job launched last, which is warm, is taken first.
  @inline(__always)
  func prefetchNext() {
    if pointee.workerPool == nil { pointee.queue.prefetchNext() }
  }

  /// Takes the next job if a switch can go directly to it: it is parked, or it has not started and a stack is free.
  ///
  /// All other cases are left to the driver.
  @inlinable @inline(__always)
  func takeRunnable() -> JobRef? {
    pointee.workerPool == nil ? takeWoken(prefetching: true) { mayRun($0) } : takeRunnableOfWorker()
  }

  /// A call, because every wait contains `takeRunnable`: with the lock inside, waits become too large to be inlined,
  /// and a select takes 2 % more instructions.
  @usableFromInline @inline(never)
  func takeRunnableOfWorker() -> JobRef? { take(prefetching: true) { mayRun($0) } }

  /// Takes the next job if it has not started and wants a stack of the given class: it can run on the current stack.
  func takeUnstarted(_ stackClass: UInt8) -> JobRef? {
    take { $0.pointee.context == nil && $0.pointee.stackClass == stackClass }
  }

  /// Takes the next job if `mayTake` is true of it: the first woken one, or on a worker perhaps a launched one.
  @inlinable @inline(__always)
  func take(prefetching: Bool = false, where mayTake: (JobRef) -> Bool) -> JobRef? {
    guard pointee.workerPool != nil else { return takeWoken(prefetching: prefetching, where: mayTake) }
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    guard prefersLaunched() else { return takeWoken(prefetching: prefetching, where: mayTake) }
    if let job = pointee.launched.next, mayTake(job) { return pointee.launched.pop() }
    repeatChoice()
    return nil
  }

  /// Takes the first woken job if `mayTake` is true of it; under the lock on a worker.
  @inlinable @inline(__always)
  func takeWoken(prefetching: Bool, where mayTake: (JobRef) -> Bool) -> JobRef? {
    guard let job = pointee.queue.first, mayTake(job) else { return nil }
    defer { if prefetching { pointee.queue.prefetch() } }
    return pointee.queue.popFirst()
  }

  /// Takes up to half of the ready jobs, for another worker: first the jobs launched longest ago, which are the largest
  /// part of a tree, then the jobs that have been ready longest.
  ///
  /// `minimum` is 2 for a worker that found nothing by itself, 1 for one that was offered work, and 0 for a take-over.
  /// Called under the lock.
  func takeHalf(atLeast minimum: Int, into stolen: inout JobQueue) {
    let count = pointee.queue.count + pointee.launched.count
    guard count >= minimum else { return }
    if pointee.marks != 0 { return takeHalfOfMarked(count, atLeast: minimum, into: &stolen) }
    takeOldestLaunched(half(of: count), into: &stolen)
    pointee.queue.move(half(of: count) - stolen.count, to: &stolen)
  }

  @inline(never)
  private func takeHalfOfMarked(_ count: Int, atLeast minimum: Int, into stolen: inout JobQueue) {
    // Only a worker that found nothing by itself respects a hold.
    if minimum > 1, pointee.isHeld { return }
    takeOldestLaunched(half(of: count), into: &stolen)
    // A job that keeps its thread waits for its worker. A take-over skips any number of them, because the jobs behind
    // them on a stuck worker wait for it alone.
    let passed = minimum == 0 ? Int.max : mostTaken
    pointee.queue.moveMovable(half(of: count) - stolen.count, to: &stolen, passing: passed)
    guard stolen.isEmpty, minimum > 0 else { return }
    // The caller is the thread of the worker that steals, in its drain.
    Carrier.current?.pointee.scheduler?._withUnsafeGuaranteedRef { thief in
      thief.worker?._withUnsafeGuaranteedRef { $0.stealBackoff.foundOnlyKept() }
    }
  }

  /// Whether a job is ready here; called by the drain, seldom.
  var hasReady: Bool {
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    return !pointee.queue.isEmpty || !pointee.launched.isEmpty
  }

  /// Whether a take-over finds a job here; any thread.
  var hasMovable: Bool {
    pointee.lock.lock()
    defer { pointee.lock.unlock() }
    if pointee.marks & ReadyQueue.kept == 0 { return pointee.queue.count + pointee.launched.count > 0 }
    return !pointee.launched.isEmpty || pointee.queue.hasMovable
  }

  private var mostTaken: Int { 128 }

  private func half(of count: Int) -> Int { min((count + 1) / 2, mostTaken) }

  private func takeOldestLaunched(_ wanted: Int, into stolen: inout JobQueue) {
    while stolen.count < wanted, let job = pointee.launched.popOldest() { stolen.append(job) }
  }

  /// Adds jobs stolen from another worker, in the order in which that worker would have run them.
  func keep(_ stolen: inout JobQueue) {
    add { queue, launched in
      while let job = stolen.popFirst() {
        if job.pointee.context == nil { launched.pushFirst(job) } else { queue.append(job) }
      }
    }
  }

  /// Whether the next job is a launched one.
  ///
  /// Called under the lock.
  @inlinable @inline(__always)
  func prefersLaunched() -> Bool {
    if pointee.launched.isEmpty { return false }
    if pointee.queue.isEmpty { return true }
    pointee.preferred &+= 1
    return pointee.preferred % ReadyQueue.fairnessInterval == 0
  }

  /// Undoes the choice of a launched job that cannot run here, so that the next call, finally the driver's, gets the
  /// same result.
  @usableFromInline
  func repeatChoice() {
    if !pointee.queue.isEmpty { pointee.preferred &-= 1 }
  }

  @inlinable @inline(__always)
  func mayRun(_ job: JobRef) -> Bool {
    if job.hold.isForeign { return false }
    if job.pointee.context == nil {
      guard let stack = stackCache.pointee.pop(job.pointee.stackClass) else { return false }
      job.pointee.context = stack
    }
    return true
  }
}

// MARK: - A queue of jobs

// A queue of ready jobs. It is intrusive: a job is in at most one such list, linked by its `next`.

/// A queue of ready jobs, first in, first out.
///
/// The owner of the queue defines its access: only the scheduler's own drain and jobs, or only the holder of a worker's
/// lock.
@usableFromInline
struct JobQueue {
  @usableFromInline var first: JobRef?
  @usableFromInline var last: JobRef?
  @usableFromInline var count = 0

  @inlinable init() {}
  @inlinable var isEmpty: Bool { first == nil }

  @inlinable @inline(__always)
  mutating func append(_ job: JobRef) {
    job.pointee.next = nil
    if let last { last.pointee.next = job } else { first = job }
    last = job
    count &+= 1
  }

  /// Appends a chain of jobs that are already linked by their `next`.
  mutating func append(_ head: JobRef, through tail: JobRef, _ length: Int) {
    tail.pointee.next = nil
    if let last { last.pointee.next = head } else { first = head }
    last = tail
    count &+= length
  }

  @inlinable @inline(__always)
  mutating func popFirst() -> JobRef? {
    guard let job = first else { return nil }
    first = job.pointee.next
    if first == nil { last = nil }
    count &-= 1
    return job
  }

  /// Prefetches the data of the next three jobs while the job that was taken runs.
  ///
  /// It fetches the last frames of the next job, the control block of the second, and the record of the third. Each
  /// contains the address that is prefetched one switch later.
  ///
  /// Without this, if more jobs alternate than the caches hold, a switch waits for these three fetches one after the
  /// other. Measured: prefetching further ahead made yields of 100,000 jobs a twentieth faster, and yields of 10,000
  /// jobs a tenth slower.
  @inlinable @inline(__always)
  func prefetch() {
    guard count > Self.crowd, let next = first else { return }
    if let context = next.pointee.context { cco_prefetch_frames(context, 7) }
    guard let following = next.pointee.next else { return }
    if let context = following.pointee.context { cco_prefetch_line(context) }
    if let last = following.pointee.next { cco_prefetch_line(last) }
  }

  /// Prefetches the record and the completion of the next job.
  @inline(__always)
  func prefetchNext() {
    if let next = first { cco_prefetch_lines(next, Int32(CCO_CELL_BYTES) / 64) }
  }

  /// Prefetches the stacks and the objects of all jobs, which have been parked for long.
  ///
  /// The first access to each stack walks cold page tables, which takes some hundred nanoseconds. This is a loop of its
  /// own because a processor does several such walks at once only if the accesses follow each other closely.
  func prefetchStacks() {
    var job = first
    while let current = job {
      if let context = current.pointee.context { cco_prefetch_line(context) }
      cco_prefetch_lines(current.handle.toOpaque(), 2)
      job = current.pointee.next
    }
  }

  /// The number of ready jobs that no longer fit into the nearest cache.
  @usableFromInline static var crowd: Int { 64 }

  /// Moves the first `wanted` jobs to the end of `other`.
  mutating func move(_ wanted: Int, to other: inout JobQueue) {
    for _ in 0..<wanted {
      guard let job = popFirst() else { return }
      other.append(job)
    }
  }

  /// Whether a job may change its thread.
  var hasMovable: Bool {
    var job = first
    while let current = job, current.keepsThread { job = current.pointee.next }
    return job != nil
  }

  /// Moves the first `wanted` jobs that may change their thread to the end of `other`, and leaves the others as they
  /// are; ends once it has passed `most` others.
  mutating func moveMovable(_ wanted: Int, to other: inout JobQueue, passing most: Int) {
    var (job, previous) = (first, JobRef?.none)
    var (wanted, left) = (wanted, most)
    while let current = job, wanted > 0 {
      let next = current.pointee.next
      if current.keepsThread {
        if left == 0 { return }
        left -= 1
        previous = current
      } else {
        if let previous { previous.pointee.next = next } else { first = next }
        if next == nil { last = previous }
        count &-= 1
        other.append(current)
        wanted -= 1
      }
      job = next
    }
  }
}

// MARK: - The launched jobs of a worker

// The jobs that the coroutines of one worker have launched, and that have not started. Batches are last in, first out,
// so a tree of coroutines runs depth first. Within a batch, jobs are in the order of their launches.
//
//   first -> [c1 c2 c3] [b2 b3] [a2 a3] <- last       a1 runs b1, b1 has just launched c1, c2, c3
//                   ^ batchEnd
//
//   push       inserts after `batchEnd`; without a `batchEnd` it inserts at the front, and a new batch begins
//   pop        takes the first job and ends the batch: the job that starts now launches in front of the remaining jobs
//   moveAll    moves all jobs to the queue of woken jobs, when a woken job yields to all
//   popOldest  takes the last job: for stealing, and for one pop in `fairnessInterval`, against starvation
//
// Invariants
// - `batchEnd`, if it is set, is in the list.
// - A job is in at most one list of ready jobs. Its `next` belongs to that list; `previousLaunched` belongs to this
//   one.

@usableFromInline
struct LaunchStack {
  @usableFromInline var first: JobRef?
  @usableFromInline var last: JobRef?
  @usableFromInline var batchEnd: JobRef?
  @usableFromInline var count = 0
  @usableFromInline var pops: UInt8 = 0

  @inlinable init() {}
  @inlinable var isEmpty: Bool { first == nil }

  /// The number of pops of which one takes the oldest job.
  @usableFromInline static var fairnessInterval: UInt8 { 32 }

  /// The job that `pop` will take.
  @inlinable var next: JobRef? { takesOldest ? last : first }

  @inlinable var takesOldest: Bool { pops % Self.fairnessInterval == Self.fairnessInterval - 1 }

  @inlinable @inline(__always)
  mutating func push(_ job: JobRef) {
    let after = batchEnd
    let before = after == nil ? first : after.unsafelyUnwrapped.pointee.next
    job.pointee.previousLaunched = after
    job.pointee.next = before
    if let after { after.pointee.next = job } else { first = job }
    if let before { before.pointee.previousLaunched = job } else { last = job }
    batchEnd = job
    count &+= 1
  }

  /// Inserts a job in front of all others, in a batch of its own.
  mutating func pushFirst(_ job: JobRef) {
    batchEnd = nil
    push(job)
    batchEnd = nil
  }

  @inlinable @inline(__always)
  mutating func pop() -> JobRef? {
    defer { pops &+= 1 }
    if takesOldest { return popOldest() }
    guard let job = first else { return nil }
    first = job.pointee.next
    if let first { first.pointee.previousLaunched = nil } else { last = nil }
    batchEnd = nil
    count &-= 1
    return job
  }

  /// Appends all jobs to a queue, in the order in which they would have run.
  ///
  /// Constant time.
  mutating func moveAll(to queue: inout JobQueue) {
    guard let first, let last else { return }
    queue.append(first, through: last, count)
    self.first = nil
    self.last = nil
    batchEnd = nil
    count = 0
  }

  @usableFromInline
  mutating func popOldest() -> JobRef? {
    guard let job = last else { return nil }
    last = job.pointee.previousLaunched
    if let last { last.pointee.next = nil } else { first = nil }
    if batchEnd == job { batchEnd = nil }
    count &-= 1
    return job
  }
}

// MARK: - The Swift jobs of a worker

// The jobs of Swift Concurrency that wait for a worker. They are accessed under the lock of its ready queue, are stolen
// and taken over with its coroutines, and are offered as they are: a worker with more than one wakes an idle worker.
//
//   next    the job that code on this worker has made ready last. It runs first: its data is in the cache.
//   high    user-initiated priority and above
//   usual   the default priority, and no priority
//   low     utility and background
//   due     the jobs of sleeps that are over
//
// Order. `next` runs first, then `due`, then the levels; but a job of a higher level goes before either. When `next` is
// replaced, or a job of a higher level goes before it, it goes to the back of its level. The job of a `Task.yield`, and
// one from outside of the worker, go to the back at once. Each list is first in, first out.
//
// No starvation. One in `fairnessInterval` choices takes from the four lists in turn, and from the next list that has a
// job if that one is empty. So a list that has jobs gives one in 64 choices at the latest. A job that `count` jobs of
// its list are ahead of runs after 64 * (count + 1) choices of this worker at the latest, whatever else is made ready.
// `next` is in no list, and needs none: the next choice that is not such a one takes it, or puts it into its list.
//
// Escalation. A job keeps the level that it was enqueued with. A Task whose priority rises while it waits is one job
// still: Swift changes its record, and enqueues nothing.
//
// `waiting` is `count`, for threads that do not have the lock. WorkerPool.swift says why no wake-up is lost.

final class SwiftJobs: @unchecked Sendable {
  // Sound because the lists are accessed under the lock of the worker's ready queue, and `waiting` is atomic.
  @exclusivity(unchecked) private var next: SwiftJobRef?
  @exclusivity(unchecked) private var lists = InlineArray<4, WorkQueue>(repeating: WorkQueue())
  @exclusivity(unchecked) private var choices: UInt8 = 0
  @exclusivity(unchecked) private(set) var count = 0
  private let waiting = Atomic<Int>(0)

  enum Position {
    case next, back, due
  }

  private static var due: Int { 3 }
  private static var fairnessInterval: UInt8 { 16 }
  /// The most jobs that a thief takes.
  private static var mostTaken: Int { 128 }
  /// So many jobs wait only where a job makes others faster than its worker runs them, or does not end.
  static var crowd: Int { 1_024 }

  init() {}

  /// The number of jobs; for a thread that may be wrong by the time that it knows.
  var countForOthers: Int { waiting.load(ordering: .relaxed) }
  /// Whether a job waits; for the worker, and for a thread that may be wrong by the time that it knows.
  var isWaiting: Bool { waiting.load(ordering: .relaxed) > 0 }
  /// Whether a job waits; for a worker that has just gone idle.
  var isWaitingAtLast: Bool { waiting.load(ordering: .sequentiallyConsistent) > 0 }

  /// The level of a job by its priority.
  static func level(of job: SwiftJobRef) -> Int {
    let priority = job.pointee.priority
    return priority == 0 ? 1 : priority > 21 ? 0 : priority > 17 ? 1 : 2
  }

  private static func levelWhenEnqueued(_ job: SwiftJobRef) -> Int { Int(job.pointee.executor >> 2) }

  /// The most jobs that a report names.
  static var mostNamed: Int { 16 }

  // All functions below are called under the lock.

  /// The numbers of the Tasks whose jobs wait, of those that have waited longest in each list, and how many they are; 0
  /// for other jobs, and behind the last one.
  func tasks() -> (numbers: InlineArray<16, UInt32>, count: Int) {
    var (tasks, count) = (InlineArray<16, UInt32>(repeating: 0), 0)
    if let next {
      tasks[0] = next.pointee.task
      count = 1
    }
    for list in lists.indices {
      lists[list].visit { message in
        guard count < Self.mostNamed else { return false }
        if case .swiftJob(let job) = message {
          tasks[count] = job.pointee.task
          count += 1
        }
        return true
      }
    }
    return (tasks, count)
  }

  /// Adds a job that has its level, and returns the number of jobs that wait.
  func add(_ job: SwiftJobRef, _ position: Position) -> Int {
    count += 1
    switch position {
    case .next:
      if let next { putBack(next) }
      next = job
      // By the worker itself, whose drain reads it after that.
      waiting.store(count, ordering: .relaxed)
      return count
    case .back: putBack(job)
    case .due: lists[Self.due].append(.swiftJob(job))
    }
    waiting.store(count, ordering: .sequentiallyConsistent)
    return count
  }

  private func putBack(_ job: SwiftJobRef) { lists[Self.levelWhenEnqueued(job)].append(.swiftJob(job)) }

  func popFirst() -> SwiftJobRef? {
    guard count > 0 else { return nil }
    choices &+= 1
    let job = choices % Self.fairnessInterval == 0 ? popInTurn() ?? popPreferred() : popPreferred()
    count -= 1
    waiting.store(count, ordering: .relaxed)
    return job
  }

  private func popPreferred() -> SwiftJobRef? {
    let highest = lists[0].isEmpty ? lists[1].isEmpty ? 2 : 1 : 0
    if let job = next {
      next = nil
      if Self.levelWhenEnqueued(job) <= highest { return job }
      putBack(job)
    }
    if case .swiftJob(let job) = lists[Self.due].firstMessage, Self.levelWhenEnqueued(job) <= highest {
      return pop(Self.due)
    }
    return pop(highest)
  }

  private func popInTurn() -> SwiftJobRef? {
    let list = Int(choices / Self.fairnessInterval)
    for step in 0..<4 {
      if let job = pop((list + step) % 4) { return job }
    }
    return nil
  }

  private func pop(_ list: Int) -> SwiftJobRef? {
    guard case .swiftJob(let job) = lists[list].popFirst() else { return nil }
    return job
  }

  /// Takes half of the jobs, if there are `minimum`: those that have waited longest, of a high level first, and `next`
  /// last.
  func takeHalf(atLeast minimum: Int, into stolen: inout WorkQueue) {
    guard count > 0, count >= minimum else { return }
    let wanted = min((count + 1) / 2, Self.mostTaken)
    for list in 0..<4 {
      while stolen.count < wanted, let job = pop(list) { stolen.append(.swiftJob(job)) }
    }
    if stolen.count < wanted, let job = next {
      next = nil
      stolen.append(.swiftJob(job))
    }
    count -= stolen.count
    waiting.store(count, ordering: .relaxed)
  }

  /// Adds jobs that were stolen from another worker, and returns the number of jobs that wait.
  func keep(_ stolen: inout WorkQueue) -> Int {
    while case .swiftJob(let job) = stolen.popFirst() { _ = add(job, .back) }
    return count
  }
}

// MARK: - Idle stacks

/// The idle stacks of a scheduler, most recently used first: their memory is hot, and starting a job on one is a
/// switch.
@usableFromInline
struct StackCache {
  @usableFromInline typealias Stack = UnsafeMutablePointer<cco_context>
  /// By size class; the last one stands for sizes above the largest, which never occur.
  @usableFromInline var first = InlineArray<8, Stack?>(repeating: nil)
  @usableFromInline var count = InlineArray<8, Int32>(repeating: 0)

  /// The most stacks of a size class: more than the usual burst of parks and finishes.
  private static var limit: Int32 { 64 }
  /// The most bytes of the stacks of a size class, all of which may have been used to their ends: nothing gives the
  /// memory of these stacks back.
  private static var byteLimit: Int { 32 << 20 }

  init() {}

  @inlinable @inline(__always)
  mutating func pop(_ stackClass: UInt8) -> Stack? {
    guard let stack = first[Int(stackClass)] else { return nil }
    first[Int(stackClass)] = stack.pointee.value?.assumingMemoryBound(to: cco_context.self)
    count[Int(stackClass)] &-= 1
    return stack
  }

  /// Adds a stack; returns false if the cache is full, and the caller must free the stack.
  mutating func push(_ stack: Stack) -> Bool {
    let stackClass = Int(stack.pointee.size_class)
    let bytes = UnsafeRawPointer(stack) - UnsafeRawPointer(stack.pointee.low)
    guard count[stackClass] < Self.limit, Int(count[stackClass]) * bytes < Self.byteLimit else { return false }
    stack.pointee.value = UnsafeMutableRawPointer(first[stackClass])
    first[stackClass] = stack
    count[stackClass] &+= 1
    return true
  }

  /// Frees every stack.
  mutating func freeAll() {
    for stackClass in 0..<7 {
      while let stack = pop(UInt8(stackClass)) { StackRunner.free(stack) }
    }
  }
}
