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
