import Synchronization

// The captures of children that were cancelled before they began (JobStart.swift). Such a child has ended, so the owner
// does not wait for its queue. But the body, with its captures, is still in the job, whose entry is in the queue. It is
// released before the scope ends, as that of every other child: nothing that a child has captured outlives its scope.
//
// A child's `captures`, under the scope's lock
//
//          dropped, and settled           the queue has come to it, or the owner has taken the body
//   inBody ---------------------> dropped -------------------------------------------> released
//     |                              |                                                    ^
//     |                              | the owner finds that the queue has the body        |
//     |                              +--> awaited -- the queue has released it -----------+
//     +-- the queue has released the body, before the child was settled ------------------+
//
// Invariants
//  1. `inBody` counts in `pending`, until the child has ended; so does `awaited`. `dropped` counts in `dropped`.
//  2. A child that is `dropped` or `awaited` is linked. So the queue, which has the body, finds the child and its scope
//     in memory until it has called `capturesWereReleased` (AnyJob.releaseDroppedBody).
//  3. The bit `bodyTaken` of the job decides who releases the body (JobRecord.takeBody): the queue when it comes to the
//     entry, or the owner when no child is pending. The owner that comes second waits for the queue, which runs at that
//     moment and is not blocked. The queue that comes second does nothing.
//
// The owner releases on its own stack, in its coroutine, outside every lock. It may suspend in a deinit, and a deinit
// may launch another child: then it begins anew.

enum Captures { case inBody, dropped, awaited, released }

extension Scope {
  /// Whether a child that has just ended stays in the list, because its body was not released.
  ///
  /// Called under the lock.
  func keeps(_ child: ScopeChild) -> Bool {
    guard child.captures == .inBody, child.job.record.isDropped else { return false }
    child.captures = .dropped
    dropped += 1
    return true
  }

  /// The queue of a child that never runs has released its body.
  ///
  /// The caller has a reference to the child: the list's may be the last one otherwise.
  func capturesWereReleased(_ child: ScopeChild) {
    lock.lock()
    let old = child.captures
    child.captures = .released
    switch old {
    case .dropped: dropped -= 1
    case .awaited: pending -= 1
    case .inBody, .released: return lock.unlock()
    }
    unlink(child)
    wakeOwnerAndUnlock()
  }

  /// Releases the bodies of the children that never ran, and that their queues have not come to.
  ///
  /// Called by the owner, under the lock, which it leaves.
  func releaseDropped() {
    var taken: ScopeChild?
    var next = first
    while let child = next {
      next = child.next
      guard child.captures == .dropped else { continue }
      dropped -= 1
      guard child.job.record.takeBody() else {
        child.captures = .awaited
        pending += 1
        continue
      }
      child.captures = .released
      unlink(child)
      child.next = taken
      taken = child
    }
    lock.unlock()
    while let child = taken {
      taken = child.next.take()
      child.job.releaseBody()
    }
  }
}
