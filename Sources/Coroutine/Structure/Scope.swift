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
  @exclusivity(unchecked) private var reason: (any Error)?
  @exclusivity(unchecked) private var waiting: WaitToken?
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
      place: LaunchPlace(file: file, line: line),
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
    _ = job.completion.add(child, observes: policy == .failTogether)
    if let reason { job.cancel(reason) }
    job.launch(.queued, on: queue)
  }

  /// Cancels every child, and what the body waits for.
  ///
  /// A body that returns a value all the same has succeeded. Any thread; idempotent, the first reason wins; after the
  /// scope's end it does nothing.
  public func cancel(_ reason: (any Error)? = nil) { signal(reason, failure: nil) }

  /// A cancellation from outside of the scope, which its owner's waits see by themselves.
  func passOn(_ reason: any Error) { signal(reason, failure: nil, interruptsOwner: false) }

  // MARK: Children

  private func link(_ child: Child) {
    child.previous = last
    if let last { last.next = child } else { first = child }
    last = child
    pending += 1
  }

  /// A child's last act, outside of its locks.
  fileprivate func ended(_ child: Child, _ error: (any Error)?) {
    if let error, policy == .failTogether { signal(nil, failure: error) }
    lock.lock()
    if let previous = child.previous { previous.next = child.next } else { first = child.next }
    if let next = child.next { next.previous = child.previous } else { last = child.previous }
    child.previous = nil
    child.next = nil
    pending -= 1
    var wakesOwner = false
    if pending == 0, let token = waiting { wakesOwner = owner.claim(token, WakeReason.delivered) }
    lock.unlock()
    if wakesOwner { Turn.makeReady(owner) }
  }

  /// The first failure counts; later ones nobody else will see.
  ///
  /// The first signal cancels.
  private func signal(_ reason: (any Error)?, failure: (any Error)?, interruptsOwner: Bool = true) {
    lock.lock()
    let isLate = failure != nil && self.failure != nil
    let first = self.failure
    if self.failure == nil { self.failure = failure }
    guard !hasEnded, !frame.pointee.isSignalled.load(ordering: .relaxed) else {
      lock.unlock()
      if isLate, let failure, let first, !(failure is CancellationError), !isSameError(failure, first) {
        CoroutineRuntime.report(failure, nil)
      }
      return
    }
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
  fileprivate func bodyFailed(_ error: any Error, reason: any Error) {
    signal(reason, failure: error, interruptsOwner: false)
  }

  /// Suspends the owner, whose frame is no longer the scope's, until every child has ended.
  ///
  /// A cancellation from outside is passed on to the children, waited out and returned.
  fileprivate func joinChildren() -> (any Error)? {
    var passedOn: (any Error)?
    while true {
      guard let turn = Turn.current, let job = turn.pointee.job else { return passedOn }
      lock.lock()
      guard pending > 0 else {
        hasEnded = true
        lock.unlock()
        return passedOn
      }
      if passedOn == nil, job.pointee.flags.load(ordering: .relaxed) & JobFlags.mustLook != 0 {
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
      waiting = job.beginWait(.children)
      lock.unlock()
      _ = Turn.park(turn, job)
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
  let (_, job) = try Turn.requireJob()
  try job.checkCancelled()
  var frame = CancelFrame(.scope, inside: job.pointee.frames)
  return try withUnsafeMutablePointer(to: &frame) { frame in
    let scope = Scope(policy, owner: job, frame: frame)
    frame.pointee.scope = Unmanaged.passUnretained(scope)
    job.pointee.frames = frame
    defer { job.forgetSignals() }
    let outcome: Result<Output, any Error>
    do {
      outcome = .success(try body(scope))
      job.pointee.frames = frame.pointee.outer
    } catch {
      outcome = .failure(error)
      job.pointee.frames = frame.pointee.outer
      scope.bodyFailed(error, reason: job.cancellation() ?? CancellationError())
    }
    let outside = scope.joinChildren()
    if let failure = scope.firstFailure { throw failure }
    if let outside { throw outside }
    return try outcome.get()
  }
}

/// Runs `body` and returns after every child that it launched in its scope has ended.
///
/// The first failure, of a child or of the body, cancels the rest and is rethrown; later failures that are no
/// cancellations go to ``CoroutineRuntime/onUnhandledError``. A child that was cancelled has not failed.
///
/// Suspends until the last child has ended, also when cancelled: that cancels the children first, and is thrown. After ``Scope/cancel(_:)``
/// a body that returns a value still succeeds. Off a coroutine ``CoroutineError/notInCoroutine``.
@discardableResult
public func co_scope<Output>(_ body: (Scope) throws -> Output) throws -> Output { try run(.failTogether, body) }

/// As ``co_scope(_:)``, but a child's failure touches no sibling and not the body: it reaches whoever joins that child,
/// else ``CoroutineRuntime/onUnhandledError``.
///
/// A failure of the body cancels the children and is rethrown.
@discardableResult
public func co_supervise<Output>(_ body: (Scope) throws -> Output) throws -> Output { try run(.supervise, body) }
