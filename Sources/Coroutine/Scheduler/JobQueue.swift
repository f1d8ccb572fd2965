public import CCoroutine

// Two queues of jobs that wait for their turn. Both are intrusive: a job is in at most one of them, by its `next`.

/// First in, first out.
///
/// Whoever owns it says who may touch it: a scheduler's own turn, or the holder of a worker's lock.
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

  /// A chain of jobs that are linked by their `next` already.
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

  /// Has the processor fetch, while the one that was taken runs, the next job's last frames, the control block of the second
  /// next and the record of the third, each of which leads to what is fetched one switch later.
  ///
  /// Where more jobs take turns than the caches hold, a switch otherwise waits for the three one after the other. Looking
  /// further ahead was tried: it helped yields of 100,000 by a twentieth and hurt those of 10,000 by a tenth.
  @inlinable @inline(__always)
  func prefetch() {
    guard count > Self.crowd, let next = first else { return }
    if let context = next.pointee.context { cco_prefetch_frames(context, 7) }
    guard let following = next.pointee.next else { return }
    if let context = following.pointee.context { cco_prefetch_line(context) }
    if let last = following.pointee.next { cco_prefetch_line(last) }
  }

  /// Has the processor fetch the stacks of all, which have rested for long.
  ///
  /// In a loop of its own: each first look at a stack walks cold page tables, some hundred nanoseconds, and a processor walks
  /// several at once only when it finds them close together in the program.
  func prefetchStacks() {
    var job = first
    while let current = job {
      if let context = current.pointee.context { cco_prefetch_line(context) }
      job = current.pointee.next
    }
  }

  /// So many ready jobs are too many for the nearest cache.
  @usableFromInline static var crowd: Int { 64 }

  /// Takes out the job at `index`, counted from the front.
  ///
  /// Linear: only a simulation chooses.
  mutating func remove(at index: Int) -> JobRef? {
    guard index > 0, index < count else { return popFirst() }
    var previous = first!
    for _ in 1..<index { previous = previous.pointee.next! }
    let job = previous.pointee.next!
    previous.pointee.next = job.pointee.next
    if last == job { last = previous }
    count &-= 1
    return job
  }

  /// Moves the first `wanted` jobs to the end of `other`.
  mutating func move(_ wanted: Int, to other: inout JobQueue) {
    for _ in 0..<wanted {
      guard let job = popFirst() else { return }
      other.append(job)
    }
  }
}
