import Synchronization

// The bodies of co_isolated that use the actors of a scheduler (Executor/Isolated.swift): any number of reentrant ones,
// or a single exclusive one.
//
//   FREE ------ a reentrant body begins ------> SHARED   counts its bodies
//    |  <------------ the last one ends --------- |
//    |                                            | an exclusive body waits: no further reentrant body begins
//    +------- an exclusive body begins -------> HELD     Swift's serial jobs are deferred, every other body waits
//       <------------------- it ends ------------ |
//
// Access. Only the scheduler's drain, and the coroutines that run in it, access this state. So it needs no lock. Waits
// begin and end in the drain as well. A cancellation on another thread only claims the waiting job's word
// (Waiter.swift).
//
// Why no other code enters an actor while an exclusive body waits. Three kinds of code are isolated to an actor of this
// scheduler:
// - Serial jobs of Swift's. They do not run in HELD.
// - Bodies of co_isolated. HELD begins only when none is active, and none begins in HELD.
// - Code that assumes isolation. The program must keep such code away.
//
// Own calls. A Task that the exclusive body waits for by co_await belongs to the body, so its serial jobs run
// (`ownTask`). Otherwise a body that calls the actor would wait for itself.
//
// Why every waiter is woken. The end of HELD, and of the last body of SHARED, wakes all waiters. Each waiter checks
// again, in the order of waiting. The deferred jobs are queued again in front of the other jobs: those were enqueued
// later, perhaps by the same thread.

struct Exclusion {
  /// The coroutine whose exclusive body is active.
  var owner: JobRef?
  /// The first of the active reentrant bodies.
  var bodies: UnsafeMutablePointer<ReentrantBody>?
  /// The coroutines that wait to begin a body.
  var waiters = WaitQueue()
  /// The number of coroutines that wait to begin an exclusive body.
  var exclusiveWaiters = 0
  /// The Task that the owner waits for by co_await; 0 if there is none.
  var ownTask: UInt = 0
  /// The deferred serial jobs, in their order.
  fileprivate var deferred = WorkQueue()

  /// Defers a serial job if an exclusive body is active; returns whether it was deferred.
  mutating func holdsBack(_ job: SwiftJobRef) -> Bool {
    guard owner != nil, job.pointee.executor == SwiftJobHeader.serial, UInt(bitPattern: job) != ownTask else {
      return false
    }
    deferred.append(.swiftJob(job))
    return true
  }

  /// Whether the job is in a reentrant body.
  func hasBody(of job: JobRef) -> Bool {
    var body = bodies
    while let current = body {
      if current.pointee.job == job { return true }
      body = current.pointee.next
    }
    return false
  }
}

/// An active reentrant body, on the stack of its co_isolated.
struct ReentrantBody {
  let job: JobRef
  var next: UnsafeMutablePointer<ReentrantBody>?
  var previous: UnsafeMutablePointer<ReentrantBody>?
}

extension Scheduler {
  func begin(_ body: UnsafeMutablePointer<ReentrantBody>) {
    body.pointee.next = exclusion.bodies
    exclusion.bodies?.pointee.previous = body
    exclusion.bodies = body
  }

  func end(_ body: UnsafeMutablePointer<ReentrantBody>) {
    let (previous, next) = (body.pointee.previous, body.pointee.next)
    next?.pointee.previous = previous
    if let previous { previous.pointee.next = next } else { exclusion.bodies = next }
    if exclusion.bodies == nil { wakeExclusionWaiters() }
  }

  func endExclusive() {
    exclusion.owner = nil
    requeueDeferred()
    wakeExclusionWaiters()
  }

  /// Queues the deferred jobs again.
  func requeueDeferred() { work.putInFront(&exclusion.deferred) }

  /// Suspends the running job until it has the scheduler's actors to itself; throws the cancellation error.
  func beginExclusive(_ job: JobRef) throws {
    exclusion.exclusiveWaiters += 1
    defer { exclusion.exclusiveWaiters -= 1 }
    do {
      try waitToBegin { $0.owner == nil && $0.bodies == nil }
    } catch {
      // Reentrant bodies may have waited for this one.
      wakeExclusionWaiters()
      throw error
    }
    exclusion.owner = job
  }

  private func wakeExclusionWaiters() {
    while let waiter = exclusion.waiters.claimFirst() {
      if let job = waiter.pointee.job { Carrier.makeReady(job) }
    }
  }

  /// Suspends the running job until `mayBegin`.
  ///
  /// Called in this scheduler's drain; throws the cancellation error.
  func waitToBegin(_ mayBegin: (Exclusion) -> Bool) throws {
    while !mayBegin(exclusion) {
      let (carrier, job) = try Carrier.beginWaiting()
      // `beginWaiting` may have let others run.
      if mayBegin(exclusion) { return }
      var waiter = Waiter(job: job)
      try withUnsafeMutablePointer(to: &waiter) { waiter in
        _ = try WaitQueue.park(carrier, job, .lock) { epoch in
          exclusion.waiters.append(waiter, epoch)
        } withdraw: {
          exclusion.waiters.remove(waiter)
        }
      }
    }
  }
}
