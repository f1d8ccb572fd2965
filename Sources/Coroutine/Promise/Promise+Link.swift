import CCoroutine
public import Dispatch
import Synchronization

// How a promise is linked to its upstream, and what happens when the upstream settles. A link is the derived promise
// itself: its waiter is in the upstream's queue, and its work item is in the handler queue. Nothing else is allocated.
// (A closure in an Optional is unwrapped by `!` here: any function of Optional would wrap it in a thunk, on the heap.)

extension AnyPromise {
  /// Makes a new promise a link of `upstream`.
  ///
  /// No other thread knows this promise yet.
  @usableFromInline
  final func link(
    to upstream: AnyPromise,
    on queue: DispatchQueue?,
    _ kind: HandlerKind,
    _ runner: @escaping PromiseRunner
  ) {
    node.pointee.kind = kind
    self.runner = runner
    let worker = kind.isEmpty ? nil : bind(to: queue, upstream)
    node.pointee.upstream = upstream.ref
    if isPassive {
      waiter.pointee.isUnowned = true
      cco_retain_memory(upstream.ref.address)
    }
    node.pointee.phase = .waiting
    join(upstream, worker)
  }

  /// Chooses where the handler runs: `queue`, else the queue of the linking coroutine or handler, else a global queue.
  ///
  /// If the caller runs on a worker, that worker's scheduler is returned, and `join` decides.
  private final func bind(to queue: DispatchQueue?, _ upstream: AnyPromise) -> Unmanaged<Scheduler>? {
    if let queue {
      pin(Unmanaged.passUnretained(QueueHost.scheduler(for: queue)), queue)
    } else if let carrier = Carrier.current, let scheduler = carrier.callerScheduler {
      if scheduler._withUnsafeGuaranteedRef({ $0.handlers != nil }) { return scheduler }
      // A carrier whose scheduler is not the job's runs an immediate start, outside the job's queue.
      guard carrier.pointee.scheduler?.toOpaque() == scheduler.toOpaque() else {
        pin(scheduler, nil)
        return nil
      }
      scheduler._withUnsafeGuaranteedRef { $0.bindHandler() }
      (node.pointee.scheduler, hold) = (scheduler, .bound)
    } else {
      node.pointee.ordered = upstream.completion.orderedHandlers()
    }
    return nil
  }

  /// Pins a scheduler: the scheduler then holds its queue, and the queue holds the scheduler.
  private final func pin(_ scheduler: Unmanaged<Scheduler>, _ queue: DispatchQueue?) {
    scheduler._withUnsafeGuaranteedRef { $0.pin(queue) }
    (node.pointee.scheduler, hold) = (scheduler, .pinned)
  }

  /// Puts this new promise into `upstream`'s queue, or handles the outcome of a settled one at once.
  ///
  /// The queue gets a reference, unless this promise is passive.
  /// `worker` is the scheduler of the worker that runs the caller, and that would run the handler.
  private final func join(_ upstream: AnyPromise, _ worker: Unmanaged<Scheduler>?) {
    let reference = Unmanaged.passUnretained(self)
    if !isPassive { cco_retain_unshared(reference.toOpaque()) }
    upstream.completion.lock()
    if let worker { node.pointee.scheduler = upstream.completion.workerOfHandlers(worker) }
    let isLinked = !upstream.completion.pointee.isReleased
    if isLinked { upstream.append(waiter) }
    upstream.completion.unlock()
    guard !isLinked else { return }
    if isPassive { cco_retain_unshared(reference.toOpaque()) }
    upstream.ignore()
    Self.upstreamSettled(reference, -1)
  }

  /// Adds a waiter; returns false if all waiters have been told already, and then the caller handles this one itself.
  @inline(__always)
  final func link(_ waiting: UnsafeMutablePointer<Waiter>) -> Bool {
    completion.lock()
    defer { completion.unlock() }
    if completion.pointee.isReleased { return false }
    append(waiting)
    return true
  }

  /// Appends a waiter, called under the lock by a thread that holds a reference to this promise.
  final func append(_ waiting: UnsafeMutablePointer<Waiter>) {
    wasAwaited.store(true, ordering: .relaxed)
    completion.pointee.waiters.append(waiting)
    if isPassive { holdWhileAwaited() }
  }

  /// Handles an upstream's outcome, once for each waiter that was in the upstream's queue, with the queue's reference.
  ///
  /// Called outside every lock, by the thread that settles the upstream or finds it settled, and so keeps it in memory.
  static func upstreamSettled(_ reference: Unmanaged<AnyPromise>, _ memberIndex: Int) {
    reference._withUnsafeGuaranteedRef { $0.upstreamSettled(reference, memberIndex) }
  }

  private final func upstreamSettled(_ reference: Unmanaged<AnyPromise>, _ memberIndex: Int) {
    if memberIndex >= 0 { return memberSettled(reference, memberIndex) }
    completion.lock()
    let known = node.pointee.upstream
    node.pointee.upstream = nil
    // The settling thread has the upstream: this is not the last reference to its memory.
    if let known, waiter.pointee.isUnowned {
      if !node.pointee.isUnused.load(ordering: .relaxed) {
        known.completion.pointee.isObserved.store(true, ordering: .relaxed)
      }
      cco_release_memory(known.address)
    }
    let kind = node.pointee.kind
    guard let upstream = known, !completion.known.isSettled else {
      // The promise was cancelled, or settled from outside, in the meantime.
      let isPosted = kind.runsWhenCancelled && node.pointee.phase == .waiting
      if isPosted { node.pointee.phase = .posted }
      completion.unlock()
      return isPosted ? Self.post(reference) : Self.giveUpLink(reference)
    }
    // Given up here, so that the promise settles as one that has nothing to take out.
    let heldItself = node.pointee.holdsItself
    node.pointee.holdsItself = false
    upstream.object._withUnsafeGuaranteedRef { upstream in
      if upstream.hasFailed {
        completion.pointee.failure = upstream.completion.pointee.failure
        if kind.contains(.failure) { return postLocked(reference) }
        node.pointee.phase = .free
        let hasHandler = !kind.isEmpty
        publish(Completion.failed)
        if hasHandler { releaseBodyWhileSettling() }
      } else {
        if kind.contains(.success) {
          source = Unmanaged.passRetained(upstream)
          return postLocked(reference)
        }
        node.pointee.phase = .free
        let hasHandler = !kind.isEmpty
        // The waiter is free now. A follow must not use it before the runner has settled the promise.
        isLocked = true
        completion.unlock()
        runner!(self, upstream, false)
        if hasHandler { releaseBodyWhileSettling() }
      }
      Self.giveUp(reference)
    }
    if heldItself { Self.giveUp(reference) }
  }

  /// Gives up the reference that an upstream's queue had to a settled promise whose handler, if any, will not run.
  ///
  /// The thread that has it releases the user's closure: the closure may hold the promise, and would keep it for ever.
  static func giveUpLink(_ reference: Unmanaged<AnyPromise>) {
    reference._withUnsafeGuaranteedRef { if !$0.node.pointee.kind.isEmpty { $0.releaseBodyWhileSettling() } }
    giveUp(reference)
  }

  private final func releaseBodyWhileSettling() {
    let words = Self.leaveSettleList()
    releaseBody()
    Self.enterSettleList(words)
  }

  /// Posts the handler; entered with the lock, left without.
  private final func postLocked(_ reference: Unmanaged<AnyPromise>) {
    node.pointee.phase = .posted
    completion.unlock()
    Self.post(reference)
  }

  /// Posts a link, with one reference, to the queue where its handler runs.
  static func post(_ reference: Unmanaged<AnyPromise>) {
    reference._withUnsafeGuaranteedRef { this in
      if let scheduler = this.node.pointee.scheduler {
        scheduler._withUnsafeGuaranteedRef { $0.sendInOrder(.work(this.work)) }
      } else {
        this.node.pointee.ordered.unsafelyUnwrapped.deliver(.work(this.work))
      }
    }
  }

  /// Runs the handler of a posted link, on the handler's queue, and gives up the reference.
  static func runHandler(_ reference: Unmanaged<AnyPromise>) {
    reference._withUnsafeGuaranteedRef { this in
      let source = this.source.take()?.takeRetainedValue()
      // A cancellation after this check comes too late to prevent the handler.
      if !this.completion.known.isSettled || this.node.pointee.kind.runsWhenCancelled {
        this.runner!(this, source, true)
      }
      this.releaseBody()
      if !this.completion.known.isSettled { this.handlerHasReturned() }
      if this.hold != .none { this.letGoOfScheduler() }
    }
    reference.release()
  }

  /// Resets the phase of a pending promise: it follows the promise that the handler returned, or another one.
  private final func handlerHasReturned() {
    completion.known.lock.withLock { if node.pointee.phase == .posted { node.pointee.phase = .free } }
  }
}

/// Returns the queue for handlers that other handlers attach later for the caller: `queue`, else the caller's own.
func queueOfHandlers(_ queue: DispatchQueue?) -> DispatchQueue? {
  queue ?? Carrier.current?.callerScheduler?.takeUnretainedValue().currentQueue
}

extension Waiter {
  /// Creates a waiter of a promise: its own one has the index -1, and a combinator has one for each member.
  init(promise: Unmanaged<AnyPromise>?, memberIndex: Int) {
    self.init(
      notify: { AnyPromise.upstreamSettled(Unmanaged.fromOpaque($0), $1) },
      context: promise?.toOpaque(),
      index: memberIndex
    )
  }
}
