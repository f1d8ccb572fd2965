import CCoroutine
public import Dispatch
import Synchronization

// How a promise comes to wait for another, and what happens when that other settles. A link is the derived promise itself:
// its node is in the upstream's list, its object is what the queue of handlers holds. Nothing else is allocated. (A closure in
// an Optional is unwrapped by `!` in here: any function of Optional would wrap it in a thunk of its own, on the heap.)

extension AnyPromise {
  /// Makes a new promise a link of `upstream`.
  ///
  /// Nobody else knows this promise yet.
  @usableFromInline
  final func link(
    to upstream: AnyPromise,
    on queue: DispatchQueue?,
    _ kind: HandlerKind,
    _ runner: @escaping PromiseRunner
  ) {
    self.kind = kind
    self.runner = runner
    let readyQueue = kind.isEmpty ? nil : bind(to: queue, upstream)
    self.upstream = Unmanaged.passUnretained(upstream)
    phase = .waiting
    join(upstream, readyQueue)
  }

  /// Where the handler will run: `queue`, else the queue of the coroutine or handler that links, else a global queue.
  ///
  /// The worker of one that runs on a worker is returned: `join` decides.
  private final func bind(to queue: DispatchQueue?, _ upstream: AnyPromise) -> Unmanaged<Scheduler>? {
    if let queue {
      pin(Unmanaged.passUnretained(QueueHost.scheduler(for: queue)), queue)
    } else if let carrier = Carrier.current, let scheduler = carrier.scheduler {
      if scheduler._withUnsafeGuaranteedRef({ $0.handlers != nil }) { return scheduler }
      // A turn of its own is an immediate start, elsewhere than on the job's queue.
      guard carrier.pointee.scheduler?.toOpaque() == scheduler.toOpaque() else {
        pin(scheduler, nil)
        return nil
      }
      scheduler._withUnsafeGuaranteedRef { $0.bindHandler() }
      (self.scheduler, hold) = (scheduler, .bound)
    } else {
      ordered = upstream.completion.orderedHandlers()
    }
    return nil
  }

  /// Pinned, a scheduler holds its queue, and the queue holds the scheduler.
  private final func pin(_ scheduler: Unmanaged<Scheduler>, _ queue: DispatchQueue?) {
    scheduler._withUnsafeGuaranteedRef { $0.pin(queue) }
    (self.scheduler, hold) = (scheduler, .pinned)
  }

  /// Puts this new promise, with a reference, into `upstream`'s list; one that is settled calls it at once.
  ///
  /// `readyQueue`: the one on which the caller runs and would have the handler run.
  private final func join(_ upstream: AnyPromise, _ readyQueue: Unmanaged<Scheduler>?) {
    let reference = Unmanaged.passUnretained(self)
    cco_retain_unshared(reference.toOpaque())
    upstream.completion.pointee.lock.lock()
    if let readyQueue { scheduler = upstream.completion.workerOfHandlers(readyQueue) }
    let isLinked = !upstream.completion.pointee.isReleased
    if isLinked { upstream.append(waiter) }
    upstream.completion.pointee.lock.unlock()
    guard !isLinked else { return }
    upstream.ignore()
    Self.upstreamSettled(reference, -1)
  }

  /// Links one who waits; false: everyone has been told, and the caller must see to this one.
  @inline(__always)
  final func link(_ waiting: UnsafeMutablePointer<Waiter>) -> Bool {
    completion.pointee.lock.lock()
    defer { completion.pointee.lock.unlock() }
    if completion.pointee.isReleased { return false }
    append(waiting)
    return true
  }

  /// Under its lock, by one who holds this promise.
  final func append(_ waiting: UnsafeMutablePointer<Waiter>) {
    wasAwaited = true
    completion.pointee.waiters.append(waiting)
  }

  /// Called once for each node that was in an upstream's list, with the list's reference, by whoever settles the upstream
  /// or finds it settled, and so keeps it in memory; outside of every lock.
  static func upstreamSettled(_ reference: Unmanaged<AnyPromise>, _ memberIndex: Int) {
    reference._withUnsafeGuaranteedRef { $0.upstreamSettled(reference, memberIndex) }
  }

  private final func upstreamSettled(_ reference: Unmanaged<AnyPromise>, _ memberIndex: Int) {
    if memberIndex >= 0 { return memberSettled(reference, memberIndex) }
    completion.pointee.lock.lock()
    guard let upstream = upstream.take(), !completion.isSettled else {
      // Cancelled or settled by hand meanwhile.
      let isPosted = kind.runsWhenCancelled && phase == .waiting
      if isPosted { phase = .posted }
      completion.pointee.lock.unlock()
      return isPosted ? Self.post(reference) : Self.giveUpLink(reference)
    }
    upstream._withUnsafeGuaranteedRef { upstream in
      if upstream.isRejected {
        completion.pointee.failure = upstream.completion.pointee.failure
        if kind.contains(.failure) { return postLocked(reference) }
        phase = .free
        let hasHandler = !kind.isEmpty
        publish(Completion.failed)
        if hasHandler { releaseBodyWhileSettling() }
      } else {
        if kind.contains(.success) {
          source = Unmanaged.passRetained(upstream)
          return postLocked(reference)
        }
        phase = .free
        let hasHandler = !kind.isEmpty
        completion.pointee.lock.unlock()
        runner!(self, upstream, false)
        if hasHandler { releaseBodyWhileSettling() }
      }
      Self.giveUp(reference)
    }
  }

  /// Gives up the reference that an upstream's list had to a settled promise whose handler, if it has one, will not run.
  ///
  /// Whoever has that reference drops the user's closure: it may hold the promise itself, and so keep it for ever.
  static func giveUpLink(_ reference: Unmanaged<AnyPromise>) {
    reference._withUnsafeGuaranteedRef { if !$0.kind.isEmpty { $0.releaseBodyWhileSettling() } }
    giveUp(reference)
  }

  private final func releaseBodyWhileSettling() {
    let words = Self.leaveSettleList()
    releaseBody()
    Self.enterSettleList(words)
  }

  /// Under its lock, which it leaves.
  private final func postLocked(_ reference: Unmanaged<AnyPromise>) {
    phase = .posted
    completion.pointee.lock.unlock()
    Self.post(reference)
  }

  /// Sends a link, with one reference, to where its handler runs.
  static func post(_ reference: Unmanaged<AnyPromise>) {
    reference._withUnsafeGuaranteedRef { this in
      if let scheduler = this.scheduler {
        scheduler._withUnsafeGuaranteedRef { $0.sendInOrder(.work(this.work)) }
      } else {
        this.ordered.unsafelyUnwrapped.deliver(.work(this.work))
      }
    }
  }

  /// Runs a posted link's handler, on the handler's queue, and gives up the reference.
  static func runHandler(_ reference: Unmanaged<AnyPromise>) {
    reference._withUnsafeGuaranteedRef { this in
      let source = this.source.take()?.takeRetainedValue()
      // Cancelled from now on, it has been too late.
      if !this.completion.isSettled || this.kind.runsWhenCancelled {
        this.runner!(this, source, true)
      }
      this.releaseBody()
      if !this.completion.isSettled { this.handlerHasReturned() }
      if this.hold != .none { this.letGoOfScheduler() }
    }
    reference.release()
  }

  /// It is still pending: it follows what the handler has returned, or another.
  private final func handlerHasReturned() {
    completion.pointee.lock.withLock { if phase == .posted { phase = .free } }
  }
}

extension UnsafeMutablePointer where Pointee == Carrier {
  /// The scheduler of the coroutine, or of the handler, that runs.
  fileprivate var scheduler: Unmanaged<Scheduler>? {
    pointee.job?.pointee.scheduler.load(ordering: .relaxed) ?? pointee.scheduler
  }
}

/// Where handlers run that are attached later, by other handlers, on behalf of the caller: `queue`, else the caller's own.
func queueOfHandlers(_ queue: DispatchQueue?) -> DispatchQueue? {
  queue ?? Carrier.current?.scheduler?.takeUnretainedValue().currentQueue
}

extension Waiter {
  /// A promise waits: with its own waiter, whose index is -1, or as a combinator with one for each member.
  init(promise: Unmanaged<AnyPromise>, memberIndex: Int) {
    self.init(
      notify: { AnyPromise.upstreamSettled(Unmanaged.fromOpaque($0), $1) },
      context: promise.toOpaque(),
      index: memberIndex
    )
  }
}
