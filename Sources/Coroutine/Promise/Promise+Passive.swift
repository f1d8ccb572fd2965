internal import CCoroutine
import Synchronization

// Promises that run no code of the user's, and only pass outcomes on: `uncancelled`, `asVoid`, a combinator that
// cancels no member. A program may make very many of them for one long-lived promise, wait for each for a while, and
// give it up: `shared.uncancelled` in a race, a race in a select.
// So each of them leaves its upstreams when nothing refers to it any more, in constant time for each upstream, and
// not only when an upstream settles.
//
//   NOT HELD <--- the first promise or callback waits for it / the last one has left ---> HOLDS ITSELF
//      |                                                                                   |
//      +-- the last reference goes: its deinit leaves the upstreams                        +-- settles: NOT HELD
//
// A coroutine that waits is not counted: it has a reference in its frame.
//
// `holdsItself` changes under the promise's lock, and a thread that adds a waiter has a reference. If the last
// dependent leaves in a walk and the promise's reference to itself is its only one, then nothing can add a waiter to it
// any more: the walk settles it as abandoned, and goes on with its upstreams. So a chain of such promises ends in
// constant stack, and not by one deinit inside another. In all other cases the reference is given up outside every
// lock.

extension AnyPromise {
  /// Lets a passive promise own itself, because a promise or a callback waits for it that may have no reference to it.
  ///
  /// Called under its lock, by a thread that has a reference.
  final func holdWhileAwaited() {
    guard !node.pointee.holdsItself, !completion.known.isSettled else { return }
    node.pointee.holdsItself = true
    _ = Unmanaged.passRetained(self)
    cco_order_retains()
  }

  /// Leaves the upstreams of a pending passive promise that is in its deinit.
  final func leaveUnused() {
    node.pointee.isUnused.store(true, ordering: .relaxed)
    completion.lock()
    let (upstream, upstreams) = (node.pointee.upstream, node.pointee.upstreams)
    completion.unlock()
    guard upstream != nil || upstreams?.hasAttached ?? false else { return }
    // The upstreams have one consumer less.
    Host.touchesEverything()
    var walk = Walk()
    walk.leaveUpstreams(of: ref)
    walk.finish()
  }

  // MARK: Callbacks

  /// Links a callback, as `CompletionRef.add` does.
  final func link(_ callback: WaitCallback) -> Bool {
    guard completion.add(callback) else { return false }
    if isPassive { completion.withLock { if ref.hasDependents { holdWhileAwaited() } } }
    return true
  }

  /// Unlinks a callback, as `CompletionRef.remove` does.
  final func unlink(_ callback: WaitCallback) -> Bool {
    let wasLinked = completion.remove(callback)
    guard isPassive else { return wasLinked }
    completion.lock()
    let isLetGo = node.pointee.holdsItself && !ref.hasDependents
    if isLetGo { node.pointee.holdsItself = false }
    completion.unlock()
    if isLetGo { Self.giveUp(ref.object) }
    return wasLinked
  }
}

// MARK: The result of a job as a promise

extension Job {
  /// A promise for the job's result, for a consumer whose cancellation must not cancel the job.
  ///
  /// `try await job.uncancelled.value` throws at once when the Task is cancelled, and leaves the job running. Starts a
  /// lazy job. Each access returns a new promise, which is released when nothing refers to it and nothing waits for it,
  /// also before the job ends. Does not suspend. May be called on any thread.
  public var uncancelled: Promise<Success> {
    let copy = JobCopy(self)
    start()
    if !completion.add(copy.callback) { copy.settle() }
    return copy
  }
}

/// A promise that settles as a job does.
private final class JobCopy<Success: Sendable>: Promise<Success>, @unchecked Sendable {
  // Sound because `job` is a constant, and `callback` is made before another thread has the copy.
  private let job: Job<Success>
  /// The job's callback for this copy, whose settling has observers.
  fileprivate private(set) lazy var callback = ClosureCallback(isForeign: true, marksObserved: true) { [weak self] in
    self?.settle()
  }

  init(_ job: Job<Success>) {
    self.job = job
    super.init(launchSite: job.record.pointee.label.launchSite)
    isPassive = true
  }

  deinit { _ = job.completion.remove(callback) }

  override var settlingOwner: UInt? { job.record.ownerNumber }

  fileprivate func settle() {
    // Not if the copy was settled before, or left by its last dependent: then nobody sees the job's failure.
    if settle(job.completion.settledOutcome(as: Success.self), fromOutside: true) {
      job.completion.pointee.isObserved.store(true, ordering: .relaxed)
    }
  }
}
