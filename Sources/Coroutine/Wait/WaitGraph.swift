import Synchronization

// Deadlock detection for the bodies of flights (SingleFlight) and of a Once, which have any number of waiters. If such
// a body waits, directly or through others, for a coroutine that waits for the body, no coroutine of this circle can
// ever continue. The wait that would close the circle throws wouldDeadlock instead.
//
// Nodes are coroutines, by the numbers under which they own locks, which are never reused. Edges are waits:
//
//   join       for a coroutine, if the waiting or the awaited one is involved; a caller of a flight joins its job
//   once       for the coroutine that runs the body of a Once
//   children   for the children of a scope, if the owner is involved: for all of them, because a scope ends after them;
//              as well for the jobs of co_all and co_allSettled
//
//   OUTSIDE --it runs a flight or the body of a Once; an involved coroutine has launched it--> INVOLVED
//
// Each wait for the body of a flight or a Once is an edge. The other waits of a circle are edges if the bodies of the
// circle have launched their coroutines. A join between two coroutines that were launched elsewhere is not an edge, and
// neither is a wait for a promise, async code, a channel or a lock. Circles that contain such a wait are not found: to
// find them would cost every join of a program.
//
// Invariants
//  1. `edges` is accessed under `lock`. A coroutine has at most one edge: it waits for one thing at a time.
//  2. An edge is added by its coroutine in the same critical section in which the search from its target has not come
//     back to that coroutine. So of the waits that together would close a circle, on whatever threads, the last one
//     finds all the others, and only that one throws: it leaves no edge.
//  3. An edge counts while its coroutine is about to park, or is parked and its source can wake it. The edge of a
//     coroutine that was cancelled, that a deadline has woken, or whose wait is satisfied does not count, even before
//     it is removed. So a search finds only circles in which every coroutine waits at that moment. A cancellation or a
//     deadline between the edge and the park is not seen, as if it came just after the search. A failure of a sibling,
//     a deadline or a cancellation that would end one of the waits later is not foreseen.
//  4. The record of an edge is live: the coroutine removes the edge, under the lock, before its frame ends.
//  5. The search reads the current targets of a Once or a scope. A coroutine that meanwhile begins to run a Once, or
//     becomes a child, is found by the search of its own next wait.
//
// Locks. `lock` comes before a scope's, and before that of the steppers of generators (Generator+Owner.swift).

enum WaitGraph {
  /// The target of a wait: the numbers of the coroutines that must all end, or continue.
  enum Target {
    case job(UInt)
    case others(() -> [UInt])
  }

  private struct Edge {
    let job: JobRef
    /// The job's `wait` before the wait began.
    let word: UInt64
    let target: Target

    /// Whether the wait will begin, or can be ended by its target (invariant 3).
    var counts: Bool {
      let word = job.pointee.wait.load(ordering: .acquiring)
      return word == self.word || job.isWaiting(WaitEpoch(word: ((self.word | 0xFF) &+ 1) | 1))
    }
  }

  private static let lock = Shared<ThreadLock>()
  nonisolated(unsafe) private static var edges: [UInt: Edge] = [:]  // Sound because of invariant 1.

  /// Calls `wait`, in which the running job waits for `target` once.
  ///
  /// Throws wouldDeadlock, without the call, if the wait would close a circle.
  static func waiting<Output>(_ job: JobRef, for target: Target, _ wait: () throws -> Output) throws -> Output {
    if closesCircle(job, target) { throw CoroutineError.wouldDeadlock(because: .circle) }
    defer { lock.withLock { _ = edges.removeValue(forKey: job.ownerNumber) } }
    return try wait()
  }

  static var count: Int { lock.withLock { edges.count } }

  private static func closesCircle(_ job: JobRef, _ target: Target) -> Bool {
    let number = job.ownerNumber
    let edge = Edge(job: job, word: job.pointee.wait.load(ordering: .relaxed), target: target)
    return lock.withLock {
      if leads(from: edge.target, to: number) { return true }
      edges[number] = edge
      return false
    }
  }

  /// Whether one of the coroutines of `target` waits for `sought`, directly or through others.
  private static func leads(from target: Target, to sought: UInt) -> Bool {
    var (seen, open): (Set<UInt>, [UInt]) = ([], numbers(of: target))
    while let next = open.popLast() {
      if next == sought { return true }
      guard seen.insert(next).inserted, let edge = edges[next], edge.counts else { continue }
      open += numbers(of: edge.target)
    }
    return false
  }

  private static func numbers(of target: Target) -> [UInt] {
    switch target {
    case .job(let number): [number]
    case .others(let numbers): numbers()
    }
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  var isInvolved: Bool { pointee.flags.load(ordering: .relaxed) & JobFlags.involved != 0 }

  /// Marks the job as INVOLVED: from now on its waits, and those of the coroutines that it launches, are edges.
  func involve() { _ = pointee.flags.bitwiseOr(JobFlags.involved, ordering: .relaxed) }

  /// Ends what `involve` has begun.
  func leaveInvolvement() { _ = pointee.flags.bitwiseAnd(~JobFlags.involved, ordering: .relaxed) }
}
