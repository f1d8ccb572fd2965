import Synchronization

// Who uses the actors of a scheduler by co_isolated (Executor/Isolated.swift): any number of reentrant bodies, or one
// exclusive body and nobody else.
//
//   FREE ------ a reentrant body begins ------> SHARED   one more or less for each body
//    |  <------------ the last one ends --------- |
//    |                                            | an exclusive body waits: no further reentrant body begins
//    +------- an exclusive body begins -------> HELD     Swift's serial jobs are put aside, every other body waits
//       <------------------- it ends ------------ |
//
// Access. By the scheduler's drain and the coroutines that run in it, so everything here is serial and needs no lock.
// A wait begins and ends there as well; a cancellation from elsewhere only claims the waiting job's word
// (Waiter.swift).
//
// Why the invariants of an actor hold over a wait of an exclusive body. Code is isolated to an actor of this scheduler
// if it is a serial job of Swift's, a body of co_isolated, or code that assumes isolation. Serial jobs are not run in
// HELD. Bodies: HELD begins only when none is active, and none begins in HELD. So of these three only the last is left
// to the program.
//
// Own calls. A Task that the exclusive body itself waits for by co_await is its own continuation, not somebody else:
// its serial jobs run (`ownTask`). Otherwise a body that calls the actor would wait for itself.
//
// Nobody is left behind. Whoever ends HELD, or the last one of SHARED, wakes everybody who waits; each checks again,
// in the order of waiting. Jobs that were put aside are queued again behind the others.

struct Exclusion {
  /// The coroutine whose exclusive body is active.
  var owner: JobRef?
  /// The first of the active reentrant bodies.
  var bodies: UnsafeMutablePointer<ReentrantBody>?
  /// The coroutines that wait to begin a body.
  var waiters = WaitQueue()
  /// How many of them wait for an exclusive one.
  var exclusiveWaiters = 0
  /// The Task that the owner waits for by co_await; 0 if there is none.
  var ownTask: UInt = 0
  /// Serial jobs that were put aside, in their order.
  private var aside = WorkQueue()

  /// Puts a serial job aside if somebody has the actors to itself; returns whether it has.
  mutating func holdsBack(_ job: SwiftJobRef) -> Bool {
    guard owner != nil, job.pointee.executor == SwiftJobHeader.serial, UInt(bitPattern: job) != ownTask else {
      return false
    }
    aside.append(.swiftJob(job))
    return true
  }

  mutating func popAside() -> Inbox.Message? { aside.popFirst() }

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
    while let message = exclusion.popAside() { swiftJobs.append(message) }
    wakeExclusionWaiters()
  }

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
