public import CCoroutine

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
