import Synchronization

// Circles of coroutines that wait for one another's bodies. Two kinds of bodies have an unknown number of waiters: that
// of a flight (SingleFlight) and that of a Once. If such a body waits, directly or through others, for something that
// waits for it, no coroutine of the circle can ever continue. The wait that would close the circle throws wouldDeadlock
// in place of waiting.
//
// Nodes are coroutines, by the numbers under which they own locks, which are never used again. Edges are waits:
//
//   join       for a coroutine, if the waiting or the awaited one is involved; a caller of a flight joins its job
//   once       for the coroutine that runs the body of a Once
//   children   for the children of a scope, if the owner is involved: for all of them, because a scope ends after them;
//              as well for the jobs of co_all and co_allSettled
//
//   OUTSIDE --it runs a flight or the body of a Once; an involved coroutine has launched it--> INVOLVED
//
// A circle needs the body of a flight or a Once, and each wait for that is an edge. The other waits of the circle
// are edges if their coroutines have been launched by the bodies of the circle. A wait of a coroutine that was launched
// elsewhere, for another of this kind, is no edge, and neither are waits for promises, async code, channels and locks.
// Circles that lead through these are not found: the cost of finding them would be paid by every join of a program.
//
// Invariants
//  1. `edges` is accessed under `lock`. A coroutine has at most one edge: it waits for one thing at a time.
//  2. An edge is added by its coroutine in the same critical section in which the search from its target has not come
//     back to that coroutine. So of the waits that together would close a circle, on whatever threads, the last one
//     finds all the others, and only that one throws: it leaves no edge.
//  3. An edge counts while its coroutine is about to park, or is parked and can be woken by what it waits for. One
//     that was cancelled, that a deadline has woken, or that has what it waited for does not count, even before it has
//     removed its edge. So a search finds only circles in which everything waits at that moment. A cancellation or a
//     deadline that comes between an edge and its park is not seen, as if it had come just after the search; and a
//     failure of a sibling, a deadline or a cancellation that would end one of the waits later is not foreseen.
//  4. The record of an edge is live: the coroutine removes the edge, under the lock, before its frame goes.
//  5. What a Once or a scope waits for is asked during the search. So a coroutine that begins to run a Once, or to be a
//     child, meanwhile is found by the search of its own next wait.
//
// Locks. `lock` comes before a scope's, and before that of the steppers of generators (Generator+Owner.swift).

enum WaitGraph {
  /// What a coroutine waits for: the numbers of the coroutines all of which must end, or continue.
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

  /// Whether one of the coroutines that `target` stands for waits for `sought`, directly or through others.
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

  /// Makes the job's waits edges from now on, and those of the coroutines that it launches.
  func involve() { _ = pointee.flags.bitwiseOr(JobFlags.involved, ordering: .relaxed) }

  /// Ends what `involve` has begun.
  func leaveInvolvement() { _ = pointee.flags.bitwiseAnd(~JobFlags.involved, ordering: .relaxed) }
}
