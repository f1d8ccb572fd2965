import Synchronization

// The bodies of co_isolated that use the actors of a scheduler (Executor/Isolated.swift): any number of reentrant ones,
// or a single exclusive one.
//
//   FREE ------ a reentrant body begins ------> SHARED   counts its bodies
//    |  <------------ the last one ends --------- |
//    |
//    +------- an exclusive body begins -------> HELD     Swift's serial jobs are deferred, every other body waits
//       <------------------- it ends ------------ |      from FREE with `overdue` jobs no exclusive body begins
//
// Access. Only the scheduler's drain, and the coroutines that run in it, access this state. So it needs no lock. The
// waits of the queue's own coroutines begin and end in the drain as well. A cancellation on another thread only claims
// the waiting job's word (Waiter.swift). For a coroutine of another queue, which waits there, an entry is in the queue
// of the waiters (BodyEntry.swift).
//
// Invariants
//  1. A body begins only while no isolated code is on the stack (`isInside`): a serial job, or another body that has
//     not begun to wait. Both can start a coroutine in their drain, by an immediate start. So no body sees an actor in
//     the middle of a synchronous part of its code.
//  2. HELD begins only in FREE, and after the serial jobs that the body before has deferred have run (`overdue` is 0).
//     They are queued in front of the scheduler's other work, so the order of serial jobs stays.
//  3. Bodies begin in the order of the calls. A body begins at once only if none waits. An exception is a body inside
//     another body of the same coroutine: it does not wait, because the others wait for the outer body.
//  4. `letWaitersBegin` is called at the end of HELD, of the last body of SHARED, of isolated code that has started a
//     coroutine, of a serial job, and of a cancelled wait. It begins the bodies that may begin, from the first waiter
//     on, and then makes their coroutines ready. So no coroutine comes between the two.
//
// Why no other code enters an actor while an exclusive body waits. Three kinds of code are isolated to an actor of this
// scheduler:
// - Serial jobs of Swift's. They do not run in HELD, and none is on the stack when HELD begins (1).
// - Bodies of co_isolated. HELD begins only when none is active, and none begins in HELD.
// - Code that assumes isolation. The program must keep such code away.
//
// Own calls. A Task that the exclusive body awaits by co_await belongs to the body, so its serial jobs run (`ownTask`).
// Otherwise a body that calls the actor would wait for itself.
//
// No starvation, if every body ends. A waiter is only behind those that have called before it (3), and a deferred job
// only behind the body that has deferred it (2). So neither bodies nor calls in a loop exclude the others.

struct Exclusion {
  /// The coroutine whose exclusive body is active.
  fileprivate(set) var owner: JobRef?
  /// The first of the active reentrant bodies.
  fileprivate var bodies: UnsafeMutablePointer<ReentrantBody>?
  /// The coroutines that wait to begin a body.
  ///
  /// The context of a job's waiter is its reentrant body; nil for an exclusive one. A waiter without a job is a
  /// BodyEntry's.
  fileprivate var waiters = WaitQueue()
  /// The Task that the owner waits for by co_await; 0 if there is none.
  var ownTask: UInt = 0
  /// The deferred serial jobs, in their order.
  fileprivate var deferred = WorkQueue()
  /// The number of jobs that were deferred by the last exclusive body and have not run since.
  fileprivate var overdue = 0
  /// Whether isolated code is on the stack, which is not waiting: a serial job, or a body that starts a coroutine.
  fileprivate var isInside = false

  /// Defers a serial job if an exclusive body is active; returns whether it was deferred.
  mutating func holdsBack(_ job: SwiftJobRef) -> Bool {
    guard owner != nil, job.pointee.executor == SwiftJobHeader.serial, UInt(bitPattern: job) != ownTask else {
      return false
    }
    job.pointee.executor = SwiftJobHeader.deferredSerial
    deferred.append(.swiftJob(job))
    return true
  }

  /// Whether deferred jobs may run.
  var hasJobsToRequeue: Bool { owner == nil && !deferred.isEmpty }

  /// Whether the job is in a reentrant body.
  func hasBody(of job: JobRef) -> Bool {
    var body = bodies
    while let current = body {
      if current.pointee.job == job { return true }
      body = current.pointee.next
    }
    return false
  }

  /// Begins a body if the state allows it, also if others wait; returns whether it has begun.
  fileprivate mutating func begins(_ body: UnsafeMutablePointer<ReentrantBody>?, of job: JobRef) -> Bool {
    guard allows(isExclusive: body == nil) else { return false }
    if let body { link(body) } else { owner = job }
    return true
  }

  /// Whether the state allows a body to begin.
  fileprivate func allows(isExclusive: Bool) -> Bool {
    owner == nil && !isInside && (!isExclusive || bodies == nil && overdue == 0)
  }

  fileprivate mutating func link(_ body: UnsafeMutablePointer<ReentrantBody>) {
    body.pointee.next = bodies
    bodies?.pointee.previous = body
    bodies = body
  }

  fileprivate mutating func unlink(_ body: UnsafeMutablePointer<ReentrantBody>) {
    let (previous, next) = (body.pointee.previous, body.pointee.next)
    next?.pointee.previous = previous
    if let previous { previous.pointee.next = next } else { bodies = next }
  }
}

/// A reentrant body that is active or waits, on the stack of its co_isolated, or in a BodyEntry.
struct ReentrantBody {
  let job: JobRef
  var next: UnsafeMutablePointer<ReentrantBody>?
  var previous: UnsafeMutablePointer<ReentrantBody>?
}

extension Scheduler {
  /// Begins an exclusive body of the running job; suspends until it may begin.
  ///
  /// Called in this scheduler's drain, as all of these are; throws the cancellation error, and then nothing has begun.
  func beginExclusive(_ job: JobRef) throws {
    if exclusion.waiters.first == nil, exclusion.begins(nil, of: job) { return }
    try waitToBegin(nil)
  }

  func endExclusive() {
    exclusion.owner = nil
    exclusion.overdue = exclusion.deferred.count
    host.requeue(self)
    letWaitersBegin()
  }

  /// Begins a reentrant body of the running job; suspends until it may begin.
  ///
  /// Throws the cancellation error, and then nothing has begun.
  func begin(_ body: UnsafeMutablePointer<ReentrantBody>) throws {
    if exclusion.hasBody(of: body.pointee.job) { return exclusion.link(body) }
    if exclusion.waiters.first == nil, exclusion.begins(body, of: body.pointee.job) { return }
    try waitToBegin(body)
  }

  func end(_ body: UnsafeMutablePointer<ReentrantBody>) {
    exclusion.unlink(body)
    if exclusion.bodies == nil { letWaitersBegin() }
  }

  /// Suspends the running job until its body has begun.
  private func waitToBegin(_ body: UnsafeMutablePointer<ReentrantBody>?) throws {
    let (carrier, job) = try Carrier.beginWaiting()
    // That may have let others run.
    if exclusion.waiters.first == nil, exclusion.begins(body, of: job) { return }
    var waiter = Waiter(job: job)
    waiter.context = body.map { UnsafeMutableRawPointer($0) }
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      _ = try WaitQueue.park(carrier, job, .lock) { epoch in
        exclusion.waiters.append(waiter, epoch)
      } withdraw: {
        exclusion.waiters.remove(waiter)
        // Reentrant bodies may have waited behind this exclusive one.
        letWaitersBegin()
      }
    }
  }

  /// Begins the bodies that may begin, from the first waiter on.
  private func letWaitersBegin() {
    while let waiter = exclusion.waiters.first {
      guard let job = waiter.pointee.job else {
        guard letBegin(BodyEntry.waiting(by: waiter), waiter) else { return }
        continue
      }
      let body = waiter.pointee.context?.assumingMemoryBound(to: ReentrantBody.self)
      guard exclusion.begins(body, of: job) else { return }
      exclusion.waiters.remove(waiter)
      if job.claim(waiter.pointee.epoch, waiter.pointee.reason) {
        Carrier.makeReady(job)
      } else if let body {
        // The wait was cancelled; its job has not unlinked the waiter yet.
        exclusion.unlink(body)
      } else {
        exclusion.owner = nil
      }
    }
  }

  // MARK: Coroutines of other queues

  /// Whether the body of an arriving coroutine may begin; if not, its entry waits for that.
  func admits(_ entry: BodyEntry) -> Bool {
    if entry.isReserved || isInsideOwnBody(entry) { return true }
    if exclusion.waiters.first == nil, exclusion.allows(isExclusive: entry.body == nil) { return true }
    // A coroutine that is cancelled will be dropped.
    guard let waiter = entry.beginToWait() else { return true }
    exclusion.waiters.append(waiter)
    return false
  }

  private func isInsideOwnBody(_ entry: BodyEntry) -> Bool {
    exclusion.owner == entry.coroutine || exclusion.hasBody(of: entry.coroutine)
  }

  /// Begins the body of a coroutine that has just arrived.
  func begin(_ entry: BodyEntry) {
    if entry.isReserved {
      if let reserved = entry.reservedBody { exclusion.unlink(reserved) }
    } else if isInsideOwnBody(entry) {
      return
    }
    if let body = entry.body { exclusion.link(body) } else { exclusion.owner = entry.coroutine }
    entry.hasBegun = true
  }

  /// Reserves the first of those that wait, and queues its entry; returns false if it has to wait.
  ///
  /// Until the coroutine arrives, the entry's record stands for its job, which may have ended by then.
  private func letBegin(_ entry: BodyEntry, _ waiter: UnsafeMutablePointer<Waiter>) -> Bool {
    guard exclusion.begins(entry.reservedBody, of: entry.record) else { return false }
    exclusion.waiters.remove(waiter)
    if entry.endWaiting() {
      entry.isReserved = true
      readyQueue.append(entry.record)
    } else if let reserved = entry.reservedBody {
      exclusion.unlink(reserved)
    } else {
      exclusion.owner = nil
    }
    return true
  }

  /// Removes the waiter or the body of a coroutine that was cancelled before its arrival.
  func forget(_ entry: BodyEntry) {
    if entry.isReserved {
      if let reserved = entry.reservedBody { end(reserved) } else { endExclusive() }
    } else if let waiter = entry.waiter, waiter.pointee.isLinked {
      exclusion.waiters.remove(waiter)
      // Reentrant bodies may have waited behind this exclusive one.
      letWaitersBegin()
    }
  }

  // MARK: Serial jobs

  /// Queues the deferred jobs again, in front of the other work: that was enqueued later, perhaps by the same thread.
  func requeueDeferred() { work.putInFront(&exclusion.deferred) }

  /// Runs a serial job.
  func runSerially(_ job: SwiftJobRef) {
    if job.pointee.executor == SwiftJobHeader.deferredSerial { exclusion.overdue -= 1 }
    whileInside { UnownedJob(job).runSynchronously(on: serialIdentity.asUnownedSerialExecutor()) }
  }

  /// Runs code on top of isolated code that is on the stack: no body begins meanwhile.
  private func whileInside(_ body: () -> Void) {
    let outer = exclusion.isInside
    exclusion.isInside = true
    body()
    exclusion.isInside = outer
    if exclusion.waiters.first != nil { letWaitersBegin() }
  }

  /// Runs the first part of a coroutine that `job` has started in this scheduler's drain.
  func runStarted(by job: JobRef, _ body: () -> Void) {
    if exclusion.hasBody(of: job) { whileInside(body) } else { body() }
  }
}
