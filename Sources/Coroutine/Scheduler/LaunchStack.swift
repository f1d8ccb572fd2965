// What the coroutines of one worker have launched and nobody has started: last in, first out by batches, so that a tree of
// coroutines runs depth first, while brothers keep the order of their launches.
//
//   first -> [c1 c2 c3] [b2 b3] [a2 a3] <- last       a1 runs b1, b1 has just launched c1, c2, c3
//                   ^ batchEnd
//
//   push       after `batchEnd`; at the front where there is none: a new batch begins
//   pop        the first, which ends the batch: whoever starts now launches in front of what is left
//   moveAll    to the queue of woken jobs, when one of those gives way to all
//   popOldest  the last; thieves, and one pop in `patience` so that the oldest gets its turn
//
// Invariant: `batchEnd`, if there is one, is in the list. A job is in one list of ready jobs at most; its `next` is that
// list's, `previousLaunched` is this one's.

@usableFromInline
struct LaunchStack {
  @usableFromInline var first: JobRef?
  @usableFromInline var last: JobRef?
  @usableFromInline var batchEnd: JobRef?
  @usableFromInline var count = 0
  @usableFromInline var pops: UInt8 = 0

  @inlinable init() {}
  @inlinable var isEmpty: Bool { first == nil }

  @usableFromInline static var patience: UInt8 { 32 }

  /// What `pop` will take.
  @inlinable var next: JobRef? { takesOldest ? last : first }

  @inlinable var takesOldest: Bool { pops % Self.patience == Self.patience - 1 }

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

  /// In front of everything, in a batch of its own.
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

  /// Everything, in the order in which it would have run, to the back of a queue; constant time.
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
