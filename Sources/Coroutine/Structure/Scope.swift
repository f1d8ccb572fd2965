public import Dispatch
import Synchronization

// Structured concurrency: what is launched in a scope ends before the scope does.
//
//   OPEN ------- body returned or threw -------> JOINING ------- last child ended -------> ENDED
//     |  child fails / cancel(): signalled          |  child fails / outer cancellation
//     +--> children cancelled, body's waits throw   +--> children cancelled
//
// Invariants, under `lock`
//  1. `first`... links exactly the children that have not ended; `pending` is their number.
//  2. The owner's frame is on the owner's stack from OPEN to ENDED; it is signalled under the lock, and ENDED is set under the
//     lock before the frame goes.
//  3. The owner's wait for its children is claimed under the lock, by the last child to end or by an interrupt.
//  4. Of a `co_scope`, `failure` is the first failure, which the scope throws. Every other child that failed is either
//     one that has passed that failure on (PassedOn.swift), and counts as seen, or is in `lateFailures`, which holds
//     it, until ENDED. Then the owner reports those that nobody has joined. A failed child of `co_supervise` reports by
//     itself when its last handle is released.
//
// The owner waits for its children even when it is cancelled: a child's closure may refer to what the owner's stack holds.

/// Where a `co_scope` or `co_supervise` launches its children.
///
/// Valid until that returns.
public final class Scope: @unchecked Sendable {
  // Sound because everything mutable is under `lock`.
  enum Policy { case failTogether, supervise }

  let policy: Policy
  private let lock = SpinLock()
  @exclusivity(unchecked) private var first: Child?
  @exclusivity(unchecked) private unowned(unsafe) var last: Child?
  @exclusivity(unchecked) private var pending = 0
  @exclusivity(unchecked) private var hasEnded = false
  @exclusivity(unchecked) private var failure: (any Error)?
  /// The last of the children that failed after the first, linked by `next`.
  @exclusivity(unchecked) private var lateFailures: Child?
  @exclusivity(unchecked) private var reason: (any Error)?
  @exclusivity(unchecked) private var waiting: WaitEpoch?
  private let owner: JobRef
  private let frame: UnsafeMutablePointer<CancelFrame>

  init(_ policy: Policy, owner: JobRef, frame: UnsafeMutablePointer<CancelFrame>) {
    self.policy = policy
    self.owner = owner
    self.frame = frame
  }

  /// What a cancelled scope throws in its body.
  var cancellationError: any Error { lock.withLock { reason } ?? CancellationError() }

  /// Starts a child, as ``co_launch(on:name:stack:start:file:line:_:)``.
  ///
  /// In a scope that is cancelled its body never runs. Does not suspend. Using a scope after its end traps.
  @inlinable @discardableResult
  public func launch<Success: Sendable>(
    on queue: DispatchQueue? = nil,
    name: String? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Success
  ) -> Job<Success> {
    let job = Job(
      scheduler: Launch.scheduler(for: queue),
      name: name,
      stack: .standard,
      launchSite: LaunchSite(file: file, line: line),
      body: body
    )
    launch(job, on: queue)
    return job
  }

  @usableFromInline
  func launch(_ job: AnyJob, on queue: DispatchQueue?) {
    let child = Child(self, job)
    // From here on a cancellation by a sibling only sets its flag: the launch below is the one that starts it.
    job.markEnqueued()
    lock.lock()
    if hasEnded { misuse("a scope was used after its co_scope or co_supervise had returned") }
    link(child)
    let reason = frame.pointee.isSignalled.load(ordering: .relaxed) ? self.reason ?? CancellationError() : nil
    lock.unlock()
    _ = job.completion.add(child, observes: false)
    if let reason { job.cancel(reason) }
    job.launch(.queued, on: queue)
  }

  /// Cancels every child, and what the body waits for.
  ///
  /// A body that returns a value all the same has succeeded. Any thread; idempotent, the first reason wins; after the
  /// scope's end it does nothing.
  public func cancel(_ reason: (any Error)? = nil) { signal(reason) }

  /// A cancellation from outside of the scope, which its owner's waits see by themselves.
  func passOn(_ reason: any Error) { signal(reason, interruptsOwner: false) }

  // MARK: Children

  private func link(_ child: Child) {
    child.previous = last
    if let last { last.next = child } else { first = child }
    last = child
    pending += 1
  }

  /// A child's last act, outside of its locks.
  fileprivate func ended(_ child: Child, _ error: (any Error)?) {
    var isLate = false
    if let error, policy == .failTogether {
      isLate = !takes(error, of: child.job)
      signal(nil)
    }
    lock.lock()
    if let previous = child.previous { previous.next = child.next } else { first = child.next }
    if let next = child.next { next.previous = child.previous } else { last = child.previous }
    child.previous = nil
    child.next = isLate ? lateFailures : nil
    if isLate { lateFailures = child }
    pending -= 1
    var wakesOwner = false
    if pending == 0, let epoch = waiting { wakesOwner = owner.claim(epoch, WakeReason.delivered) }
    lock.unlock()
    if wakesOwner { Carrier.makeReady(owner) }
  }

  /// Whether the scope's caller will see a child's failure: it is the first, or the first that has been passed on.
  private func takes(_ error: any Error, of job: AnyJob) -> Bool {
    lock.lock()
    let first = failure
    if first == nil { failure = error }
    lock.unlock()
    if let first, !job.record.passesOn(first, as: error) { return false }
    job.completion.pointee.isObserved.store(true, ordering: .relaxed)
    return true
  }

  /// The first signal cancels.
  private func signal(_ reason: (any Error)?, interruptsOwner: Bool = true) {
    lock.lock()
    guard !hasEnded, !frame.pointee.isSignalled.load(ordering: .relaxed) else { return lock.unlock() }
    self.reason = reason
    frame.pointee.isSignalled.store(true, ordering: .releasing)
    _ = owner.pointee.flags.bitwiseOr(JobFlags.signalled, ordering: .acquiringAndReleasing)
    let handle = owner.handle.takeUnretainedValue()
    let children = linkedJobs()
    lock.unlock()
    for job in children { job.cancel(reason) }
    if interruptsOwner { handle.interrupt() }
  }

  /// Strong references, because a child may end while they are used.
  private func linkedJobs() -> [AnyJob] {
    var jobs: [AnyJob] = []
    var child = first
    while let current = child {
      jobs.append(current.job)
      child = current.next
    }
    return jobs
  }

  /// The body has thrown: its error counts unless a child has failed before.
  ///
  /// A later one that is no cancellation nobody else will see. `outside` is what cancels the body from outside of the
  /// scope, if anything does.
  fileprivate func bodyFailed(_ error: any Error, outside: (any Error)?) {
    lock.lock()
    let (first, reason) = (failure, reason)
    if first == nil { failure = error }
    lock.unlock()
    signal(outside ?? CancellationError(), interruptsOwner: false)
    guard let first, !owner.passesOn(first, as: error), !(error is CancellationError) else { return }
    for cancellation in [reason, outside] {
      if let cancellation, isSameError(error, cancellation) { return }
    }
    owner.handle._withUnsafeGuaranteedRef { UnhandledErrors.report(error, in: $0.summary) }
  }

  /// Reports the later failures of children that nobody has joined, in the order in which they came.
  ///
  /// The owner, after the last child has ended.
  fileprivate func reportLateFailures() {
    guard var child = lock.withLock({ lateFailures.take() }) else { return }
    var jobs = [child.job]
    while let earlier = child.next.take() {
      child = earlier
      jobs.append(child.job)
    }
    for job in jobs.reversed() { job.reportUnlessSeen() }
  }

  /// Suspends the owner, whose frame is no longer the scope's, until every child has ended.
  ///
  /// A cancellation from outside is passed on to the children, waited out and returned.
  fileprivate func joinChildren() -> (any Error)? {
    var passedOn: (any Error)?
    while true {
      guard let carrier = Carrier.current, let job = carrier.pointee.job else { return passedOn }
      lock.lock()
      guard pending > 0 else {
        hasEnded = true
        lock.unlock()
        return passedOn
      }
      if passedOn == nil, job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0 {
        lock.unlock()
        passedOn = job.cancellation()
        if let passedOn { passOn(passedOn) }
        lock.lock()
        guard pending > 0 else {
          lock.unlock()
          continue
        }
      }
      // Once the cancellation is passed on this wait outlasts it: the last child must be able to end it.
      let wasShielded = passedOn != nil ? job.setShielded(true) : true
      // A cancellation is not thrown here: the loop passes it on.
      _ = try? WaitQueue.park(carrier, job, .children) { epoch in
        waiting = epoch
        lock.unlock()
      } withdraw: {}
      lock.lock()
      waiting = nil
      lock.unlock()
      if passedOn != nil, !wasShielded { _ = job.setShielded(false) }
    }
  }

  fileprivate var firstFailure: (any Error)? { lock.withLock { failure } }
}

/// A child's place in its scope, and what the child's completion calls.
private final class Child: WaitCallback, @unchecked Sendable {
  // Sound because the links are under the scope's lock.
  let job: AnyJob
  private let scope: Scope
  @exclusivity(unchecked) var next: Child?
  @exclusivity(unchecked) unowned(unsafe) var previous: Child?

  init(_ scope: Scope, _ job: AnyJob) {
    self.scope = scope
    self.job = job
    super.init()
  }

  override func fire() { scope.ended(self, failure) }

  /// What the job failed with, unless it was its own cancellation.
  private var failure: (any Error)? {
    guard job.completion.pointee.state.load(ordering: .acquiring) == Completion.failed else { return nil }
    return job.completion.pointee.failure.flatMap { job.isOwnCancellation($0) ? nil : $0 }
  }
}

private func run<Output>(_ policy: Scope.Policy, _ body: (Scope) throws -> Output) throws -> Output {
  let (_, job) = try Carrier.requireJob()
  try job.checkCancelled()
  var frame = CancelFrame(.scope, inside: job.pointee.frames)
  return try withUnsafeMutablePointer(to: &frame) { frame in
    let scope = Scope(policy, owner: job, frame: frame)
    frame.pointee.owner = CancelFrame.Owner(
      object: UnsafeRawPointer(Unmanaged.passUnretained(scope).toOpaque()),
      error: { Unmanaged<Scope>.fromOpaque($0).takeUnretainedValue().cancellationError },
      cancel: { Unmanaged<Scope>.fromOpaque($0).takeUnretainedValue().passOn($1) }
    )
    job.pointee.frames = frame
    defer { job.forgetSignals() }
    let outcome: Result<Output, any Error>
    do {
      outcome = .success(try body(scope))
      job.pointee.frames = frame.pointee.outer
    } catch {
      outcome = .failure(error)
      job.pointee.frames = frame.pointee.outer
      scope.bodyFailed(error, outside: job.cancellation())
    }
    let outside = scope.joinChildren()
    scope.reportLateFailures()
    if let failure = scope.firstFailure { throw failure }
    if let outside { throw outside }
    return try outcome.get()
  }
}

/// Runs `body` and returns after every child that it launched in its scope has ended.
///
/// The first failure, of a child or of the body, cancels the rest and is rethrown. Every later failure that is no
/// cancellation goes to ``CoroutineRuntime/onUnhandledError``, with the name and the launch place of the coroutine that
/// failed, before this returns; but not that of a child which somebody has joined, nor the first failure itself where a
/// coroutine that has joined the failed child throws its error on. A child that was cancelled has not failed.
///
/// Suspends until the last child has ended, also when cancelled: that cancels the children first, and is thrown. After ``Scope/cancel(_:)``
/// a body that returns a value still succeeds. Off a coroutine ``CoroutineError/notInCoroutine``.
@discardableResult
public func co_scope<Output>(_ body: (Scope) throws -> Output) throws -> Output { try run(.failTogether, body) }

/// As ``co_scope(_:)``, but a child's failure touches no sibling and not the body: it reaches whoever joins that child,
/// else ``CoroutineRuntime/onUnhandledError``, as soon as the last handle of the child is released: a job that `body`
/// returns may still be joined.
///
/// A failure of the body cancels the children and is rethrown.
@discardableResult
public func co_supervise<Output>(_ body: (Scope) throws -> Output) throws -> Output { try run(.supervise, body) }
