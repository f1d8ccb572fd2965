import Synchronization

// Structured concurrency: the children of a scope end before the scope does.
//
//   OPEN ------- body returned or threw -------> JOINING ------- last child ended -------> ENDED
//     |  child fails / cancel(): signalled          |  child fails / outer cancellation
//     +--> children cancelled, body's waits throw   +--> children cancelled
//
// Invariants, under `lock`
//  1. The list from `first` links the children that have not ended; `pending` is their number.
//  2. The owner's frame is on the owner's stack from OPEN to ENDED. It is signalled under the lock, and ENDED is set
//     under the lock before the frame goes.
//  3. The owner's wait for its children is claimed under the lock, by the last child to end or by an interrupt.
//  4. `failure` is the first failure of a `co_scope`, which the scope throws. Every other failed child either has
//     passed that failure on (ReceivedFailure.swift), and counts as seen, or is in `lateFailures`, which holds it,
//     until ENDED. Then the owner reports those that no coroutine has joined. A failed child of an isolated scope
//     reports by itself when its last handle is released.
//
// The owner waits for its children even when it is cancelled: a child's closure may refer to objects on the owner's
// stack. A child that was cancelled before it began has ended at once, also if its queue is blocked (JobStart.swift).

/// Launches the children of a `co_scope`.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// try co_scope { scope in
///   let profile = scope.launch(name: "profile") { try fetch("/\(user)") }
///   let news = scope.launch(name: "news") { try fetch("/\(user)/news") }
///   return try profile.join().text + news.join().text
/// }
/// ```
///
/// Valid until that call returns.
public final class Scope: @unchecked Sendable {
  // Sound because everything mutable is under `lock`, and `signal` under `stopping`.
  let failures: Failures
  // Not shared: the order of ends shows only after a failure, which cancels: that depends on every other step.
  let lock = SpinLock()
  let stopping = Shared<SpinLock>()
  @exclusivity(unchecked) private(set) var first: ScopeChild?
  @exclusivity(unchecked) private unowned(unsafe) var last: ScopeChild?
  /// The child that the one signal cancels next.
  @exclusivity(unchecked) private unowned(unsafe) var nextSignalled: ScopeChild?
  @exclusivity(unchecked) var pending = 0
  @exclusivity(unchecked) private(set) var hasEnded = false
  /// Whether the body is over (`leaveFrame`).
  ///
  /// From then on a cancellation of the scope does not signal the owner.
  @exclusivity(unchecked) private var hasLeftFrame = false
  @exclusivity(unchecked) private var failure: (any Error)?
  /// The children that failed after the first failure, the latest first, linked by `next`.
  @exclusivity(unchecked) private var lateFailures: ScopeChild?
  @exclusivity(unchecked) private var reason: (any Error)?
  @exclusivity(unchecked) private var waiting: WaitEpoch?
  /// Scope+Stop.swift.
  @exclusivity(unchecked) var signal: StopSignal?
  @exclusivity(unchecked) var stopTimers: StopTimer?
  let owner: JobRef
  private let frame: UnsafeMutablePointer<CancelFrame>

  init(_ failures: Failures, owner: JobRef, frame: UnsafeMutablePointer<CancelFrame>) {
    self.failures = failures
    self.owner = owner
    self.frame = frame
  }

  /// Whether the scope is cancelled; read by the owner, or under the lock.
  var isSignalled: Bool { frame.pointee.isSignalled.load(ordering: .relaxed) }

  /// The error that a cancelled scope throws in its body.
  var cancellationError: any Error { lock.withLock { reason } ?? CancellationError() }

  /// Launches a child that was made for this scope; `anchor` is its scheduler's, if the caller has it.
  @usableFromInline
  func launch(_ job: AnyJob, holding anchor: Anchor?) {
    let child = ScopeChild(self, job)
    // From here on a cancellation by a sibling only sets the flag: the launch below starts the child.
    job.markEnqueued()
    lock.lock()
    if hasEnded { misuse("a scope was used after its co_scope had returned") }
    link(child)
    let (isSignalled, reason) = (isSignalled, self.reason)
    lock.unlock()
    // A sibling's cancellation may have dropped the child by now.
    if !job.completion.addKnown(child, observes: false) { child.fire() }
    if isSignalled { job.cancel(reason ?? CancellationError()) }
    job.launch(.queued, holding: anchor)
  }

  /// Cancels every child, and the waits of the body.
  ///
  /// A body that returns a value despite that has succeeded. May be called on any thread, and repeatedly: the first
  /// reason counts. Does nothing after the scope's end.
  public func cancel(_ reason: (any Error)? = nil) { signal(reason) }

  /// Passes on a cancellation from outside the scope, which the owner's waits detect by themselves.
  func passOn(_ reason: any Error) { signal(reason, interruptsOwner: false) }

  // MARK: Children

  private func link(_ child: ScopeChild) {
    child.previous = last
    if let last { last.next = child } else { first = child }
    last = child
    pending += 1
  }

  /// Handles the end of a child, as the child's last action, outside its locks.
  fileprivate func ended(_ child: ScopeChild, _ error: (any Error)?) {
    var isLate = false
    if let error, !failures.areIsolated {
      isLate = !takes(error, of: child.job)
      signal(nil)
    }
    lock.lock()
    pending -= 1
    unlink(child)
    if isLate {
      child.next = lateFailures
      lateFailures = child
    }
    var wakesOwner = false
    if pending == 0, let epoch = waiting { wakesOwner = owner.claim(epoch, WakeReason.delivered) }
    lock.unlock()
    if wakesOwner { Carrier.makeReady(owner) }
  }

  /// Takes a child out of the list.
  ///
  /// Called under the lock.
  private func unlink(_ child: ScopeChild) {
    if let previous = child.previous { previous.next = child.next } else { first = child.next }
    if let next = child.next { next.previous = child.previous } else { last = child.previous }
    if nextSignalled === child { nextSignalled = child.next }
    child.previous = nil
    child.next = nil
  }

  /// Whether the scope throws a child's failure: it is the first failure, or the first one passed on.
  private func takes(_ error: any Error, of job: AnyJob) -> Bool {
    lock.lock()
    let first = failure
    if first == nil { failure = error }
    lock.unlock()
    if let first, !job.record.passesOn(first, as: error) { return false }
    job.completion.pointee.isObserved.store(true, ordering: .relaxed)
    return true
  }

  /// Cancels the children, once: only the first signal counts.
  private func signal(_ reason: (any Error)?, interruptsOwner: Bool = true) {
    lock.lock()
    guard !hasEnded, !isSignalled else { return lock.unlock() }
    self.reason = reason
    frame.pointee.isSignalled.store(true, ordering: .releasing)
    if !hasLeftFrame { _ = owner.pointee.flags.bitwiseOr(JobFlags.signalled, ordering: .acquiringAndReleasing) }
    let handle = owner.handle.takeUnretainedValue()
    nextSignalled = first
    lock.unlock()
    while let job = takeSignalled() { job.cancel(reason) }
    if interruptsOwner { handle.interrupt() }
  }

  /// Returns the next child to cancel, or nil after the last one.
  ///
  /// A child that is launched after the signal is cancelled by its launch, and perhaps here once more: only the first
  /// cancellation counts. A strong reference, because the child may end while it is used.
  private func takeSignalled() -> AnyJob? {
    lock.lock()
    defer { lock.unlock() }
    guard let child = nextSignalled else { return nil }
    nextSignalled = child.next
    return child.job
  }

  /// Takes the frame out of the owner's chain.
  ///
  /// Called by the owner as soon as the body is over. The owner runs users' code after that, which may wait: the hook
  /// for unhandled errors. `JobFlags.signalled` promises that an interrupt ends this wait
  /// (Arrival.swift, AsyncCall.swift). No interrupt does, because the frame is not visible any more. So no signal
  /// sets the flag from here on, and one that has set it is forgotten.
  fileprivate func leaveFrame() {
    owner.pointee.frames = frame.pointee.outer
    lock.lock()
    hasLeftFrame = true
    lock.unlock()
    owner.forgetSignals()
  }

  /// Records the error that the body threw, unless a child has failed before.
  ///
  /// In that case an error that is no cancellation is reported, because the scope does not throw it. `outside` is the
  /// cancellation from outside the scope, if there is one.
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
    owner.handle._withUnsafeGuaranteedRef { $0.report(error) }
  }

  /// Reports the later failures of children that no coroutine has joined, in the order in which they came.
  ///
  /// Called by the owner, after the last child has ended.
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
  /// A cancellation from outside is passed on to the children, and returned after they have ended.
  fileprivate func joinChildren() -> (any Error)? {
    var passedOn: (any Error)?
    var hasWaited = false
    while true {
      guard let carrier = Carrier.current, let job = carrier.pointee.job else { return passedOn }
      lock.lock()
      guard pending > 0 else {
        hasEnded = true
        let timers = stopTimers
        stopTimers = nil
        lock.unlock()
        if timers != nil { endTimers(timers) }
        // A wait for no child is satisfied at once, and counts as such a wait (Carrier.swift). At the end, because the
        // children may end at any time before.
        if !hasWaited { _ = Carrier.countWait(carrier, job) }
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
      hasWaited = true
      // Once the cancellation is passed on, this wait must outlast it: the last child must be able to end the wait.
      parkForChildren(carrier, job, outlasts: passedOn != nil)
    }
  }

  /// Suspends the owner until the last child has ended, or until a cancellation that it does not outlast.
  ///
  /// Called under the lock, which it leaves.
  private func parkForChildren(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef, outlasts: Bool) {
    let wasShielded = outlasts ? job.setShielded(true) : true
    // The error is not lost: the job stays cancelled, and the caller's loop passes the cancellation on.
    _ = try? WaitQueue.park(carrier, job, .children, for: self) { epoch in
      waiting = epoch
      lock.unlock()
    } withdraw: {
    }
    lock.lock()
    waiting = nil
    lock.unlock()
    if !wasShielded { _ = job.setShielded(false) }
  }

  /// The owners' numbers of the children that have not ended.
  var unfinished: [UInt] {
    var numbers: [UInt] = []
    while true {
      lock.lock()
      let count = pending
      if count <= numbers.capacity {
        var next = first
        while let child = next {
          numbers.append(child.job.record.ownerNumber)
          next = child.next
        }
      }
      lock.unlock()
      if count <= numbers.capacity { return numbers }
      numbers.reserveCapacity(count)
    }
  }

  fileprivate var firstFailure: (any Error)? { lock.withLock { failure } }
}

/// The list entry of a child in its scope, and the callback of the child's completion.
final class ScopeChild: WaitCallback, ScopeEntry, @unchecked Sendable {
  // Sound because the links are under the scope's lock.
  let job: AnyJob
  let scope: Scope
  @exclusivity(unchecked) var next: ScopeChild?
  @exclusivity(unchecked) unowned(unsafe) var previous: ScopeChild?

  init(_ scope: Scope, _ job: AnyJob) {
    self.scope = scope
    self.job = job
    super.init()
  }

  var enclosing: any EnclosingScope { scope }
  override func fire() { scope.ended(self, failure) }

  /// The error that the job failed with, or nil if it succeeded or failed with its own cancellation.
  private var failure: (any Error)? {
    guard job.completion.known.state.load(ordering: .acquiring) == Completion.failed else { return nil }
    return job.completion.pointee.failure.flatMap { job.isOwnCancellation($0) ? nil : $0 }
  }
}

/// Runs `body`, and returns after every child that it launched in its scope has ended.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// func page(of user: String) throws -> String {
///   try co_scope { scope in
///     let profile = scope.launch(name: "profile") { try fetch("/\(user)") }
///     let news = scope.launch(name: "news") { try fetch("/\(user)/news") }
///     return try profile.join().text + news.join().text
///   }
/// }
/// ```
///
/// - Parameters:
///   - failures: Whether a child's failure ends the scope, or concerns that child alone.
///   - body: Launches the children; its result is that of the call.
/// - Throws: With `.together`, the first failure, of a child or of the body; it also cancels the others. With
///   `.isolated`, a failure of the body, which cancels the children. ``CoroutineError/notInCoroutine`` outside a
///   coroutine.
///
/// Every later failure that is no cancellation is reported to ``CoroutineRuntime/unhandledErrorHandler``, with the name
/// and the launch site of the failed coroutine, before this returns. Two failures are not reported: that of a child
/// that a coroutine has joined, and the first failure itself if a coroutine that joined the failed child throws it
/// again. A cancelled child has not failed.
///
/// With `.isolated`, a child's failure goes to the coroutines that join the child. If none does, it is reported when
/// the last handle of the child is released: a job that `body` returns may still be joined.
///
/// Suspends until the last child has ended. If the coroutine is cancelled, the children are cancelled first, and the
/// cancellation error is thrown at the end. After ``Scope/cancel(_:)``, a body that returns a value still succeeds.
@discardableResult
@available(*, noasync, message: "use `withThrowingTaskGroup`, or await the `value` of a coroutine that does this")
public func co_scope<Output>(
  failures: Scope.Failures = .together,
  _ body: (Scope) throws -> Output
) throws -> Output {
  let (_, job) = try Carrier.requireJob()
  try job.checkCancelled()
  var frame = CancelFrame(.scope, inside: job.pointee.frames)
  return try withUnsafeMutablePointer(to: &frame) { frame in
    let scope = Scope(failures, owner: job, frame: frame)
    frame.pointee.owner = CancelFrame.Owner(
      object: UnsafeRawPointer(Unmanaged.passUnretained(scope).toOpaque()),
      error: { Unmanaged<Scope>.fromOpaque($0).takeUnretainedValue().cancellationError },
      cancel: { Unmanaged<Scope>.fromOpaque($0).takeUnretainedValue().passOn($1) }
    )
    job.pointee.frames = frame
    let outcome: Result<Output, any Error>
    do {
      outcome = .success(try body(scope))
      scope.leaveFrame()
    } catch {
      outcome = .failure(error)
      scope.leaveFrame()
      scope.bodyFailed(error, outside: job.cancellation())
    }
    let outside = scope.joinChildren()
    scope.reportLateFailures()
    if let failure = scope.firstFailure { throw failure }
    if let outside { throw outside }
    return try outcome.get()
  }
}
