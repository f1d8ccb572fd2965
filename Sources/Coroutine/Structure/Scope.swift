public import Dispatch
import Synchronization

// Structured concurrency: the children of a scope end before the scope does.
//
//   OPEN ------- body returned or threw -------> JOINING ------- last child ended -------> ENDED
//     |  child fails / cancel() / outside            |  the same
//     +--> children cancelled, body's waits throw    +--> children cancelled
//
// Invariants, under `lock`
//  1. `children` has the children that have not ended (ChildList), `failed` the failures of the others
//     (FailedChildren).
//  2. The owner's frame is on the owner's stack from OPEN to ENDED. It is signalled under the lock, and ENDED is set
//     under the lock before the frame goes.
//  3. The owner's wait for its children is claimed under the lock, by the last child to end or by an interrupt.
//  4. `outside` is the first cancellation that came from outside the scope, and `cutsChildren` says whether it found a
//     child that had not ended, or kept one from beginning. Then the scope throws it, whatever the body has done with
//     it: the body may have been in a shield, have caught the error, or have lost it in the step of a generator. A
//     value of the body would say that the children have done their work.
//
// A cancellation from outside reaches the scope by an interrupt or by the owner (`passOn`), and a child by the scope.
// Of both, and of a child that ends meanwhile, each takes the lock: a child has ended before the cancellation, and has
// done its work, or it is among `children`, and the scope throws. A child that is launched after it is dropped, and
// counts in the same way.
//
// The owner waits for its children even when it is cancelled. A child that was cancelled before it began has ended at
// once, also if its queue is blocked (JobRecord.swift); only its captures may stay until the queue comes to it.

/// The children of a scope that have not ended, in the order of their launches; under the scope's lock.
///
/// Invariants
///  1. `next` leads from `first` to `last`, `previous` back; `count` is their number.
///  2. `unsignalled` is the first child that the scope's one signal has not come to. It is nil before the signal, and
///     when the signal has come to all.
private struct ChildList {
  private var first: ScopeChild?
  private unowned(unsafe) var last: ScopeChild?
  private unowned(unsafe) var unsignalled: ScopeChild?
  private(set) var count = 0

  mutating func append(_ child: ScopeChild) {
    child.previous = last
    if let last { last.next = child } else { first = child }
    last = child
    count += 1
  }

  mutating func remove(_ child: ScopeChild) {
    if let previous = child.previous { previous.next = child.next } else { first = child.next }
    if let next = child.next { next.previous = child.previous } else { last = child.previous }
    if unsignalled === child { unsignalled = child.next }
    child.previous = nil
    child.next = nil
    count -= 1
  }

  mutating func beginSignal() { unsignalled = first }

  /// Returns the next child to cancel, or nil after the last one.
  ///
  /// A child that is launched after the signal is cancelled by its launch, and perhaps here once more: only the first
  /// cancellation counts. A strong reference, because the child may end while it is used.
  mutating func nextSignalled() -> AnyJob? {
    guard let child = unsignalled else { return nil }
    unsignalled = child.next
    return child.job
  }

  func forEach(_ body: (AnyJob) -> Void) {
    var next = first
    while let child = next {
      body(child.job)
      next = child.next
    }
  }
}

/// What the body and the children have failed with; under the scope's lock.
///
/// Invariants
///  1. `first` is the first failure of a scope `.together`, which it throws, or that of the body.
///  2. Every other failed child of such a scope either has passed `first` on (Job.swift), and counts as
///     seen, or is in the list from `late`, the latest first. The owner takes the list at the end, and reports those
///     that no coroutine has joined. A failed child of an isolated scope reports by itself when its last handle is
///     released.
private struct FailedChildren {
  private(set) var first: (any Error)?
  private var late: ScopeChild?

  /// Notes a failure, and returns the one that came before it, if there is one.
  mutating func note(_ error: any Error) -> (any Error)? {
    if let first { return first }
    first = error
    return nil
  }

  mutating func addLate(_ child: ScopeChild) {
    child.next = late
    late = child
  }

  /// Takes the list of the late ones, the latest first.
  mutating func takeLate() -> ScopeChild? { late.take() }
}

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
  @exclusivity(unchecked) private var children = ChildList()
  @exclusivity(unchecked) private var failed = FailedChildren()
  @exclusivity(unchecked) private(set) var hasEnded = false
  /// Whether the body is over (`leaveFrame`).
  ///
  /// From then on a cancellation of the scope does not signal the owner.
  @exclusivity(unchecked) private var hasLeftFrame = false
  /// Invariant 4.
  @exclusivity(unchecked) private var outside: (any Error)?
  @exclusivity(unchecked) private var cutsChildren = false
  @exclusivity(unchecked) private var reason: (any Error)?
  @exclusivity(unchecked) private var waiting: WaitEpoch?
  /// Stop.swift.
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
    children.append(child)
    if outside != nil { cutsChildren = true }
    let (isSignalled, reason) = (isSignalled, self.reason)
    lock.unlock()
    // A sibling's cancellation may have dropped the child by now.
    if !job.completion.add(child, observes: .no) { child.fire() }
    if isSignalled { job.cancel(reason ?? CancellationError()) }
    job.launch(.queued, holding: anchor)
  }

  /// Cancels every child, and the waits of the body.
  ///
  /// A body that returns a value despite that has succeeded. May be called on any thread, and repeatedly: the first
  /// reason counts. Does nothing after the scope's end.
  public func cancel(_ reason: (any Error)? = nil) { signal(reason) }

  /// Passes on a cancellation from outside the scope, which the owner's waits detect by themselves.
  func passOn(_ reason: any Error) {
    lock.lock()
    if outside == nil { outside = reason }
    if children.count > 0 { cutsChildren = true }
    lock.unlock()
    signal(reason, interruptsOwner: false)
  }

  // MARK: Children

  /// Handles the end of a child, as the child's last action, outside its locks.
  fileprivate func ended(_ child: ScopeChild, _ error: (any Error)?) {
    var isLate = false
    if let error, !failures.areIsolated {
      isLate = !takes(error, of: child.job)
      signal(nil)
    }
    lock.lock()
    children.remove(child)
    if isLate { failed.addLate(child) }
    var wakesOwner = false
    if children.count == 0, let epoch = waiting { wakesOwner = owner.claim(epoch, WakeReason.delivered) }
    lock.unlock()
    if wakesOwner { Carrier.makeReady(owner) }
  }

  /// Whether the scope throws a child's failure: it is the first failure, or the first one passed on.
  private func takes(_ error: any Error, of job: AnyJob) -> Bool {
    let first = lock.withLock { failed.note(error) }
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
    children.beginSignal()
    lock.unlock()
    while let job = lock.withLock({ children.nextSignalled() }) { job.cancel(reason) }
    if interruptsOwner { handle.interrupt() }
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
    let (first, reason) = lock.withLock { (failed.note(error), self.reason) }
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
    var late = lock.withLock { failed.takeLate() }
    var jobs: [AnyJob] = []
    while let child = late {
      jobs.append(child.job)
      late = child.next.take()
    }
    for job in jobs.reversed() { job.reportUnlessSeen() }
  }

  /// Suspends the owner, whose frame is no longer the scope's, until every child has ended; ends the scope.
  fileprivate func joinChildren() {
    var (isPassedOn, hasWaited) = (false, false)
    while let carrier = Carrier.current, let job = carrier.pointee.job {
      if !isPassedOn, job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0, hasChildren,
        let reason = job.cancellation()
      {
        isPassedOn = true
        passOn(reason)
      }
      lock.lock()
      guard children.count > 0 else {
        hasEnded = true
        let timers = stopTimers.take()
        lock.unlock()
        if timers != nil { endTimers(timers) }
        // A wait for no child is satisfied at once, and counts as such a wait (Carrier.swift). At the end, because the
        // children may end at any time before.
        if !hasWaited { _ = Carrier.countWait(carrier, job) }
        return
      }
      hasWaited = true
      // Once the cancellation is passed on, this wait must outlast it: the last child must be able to end the wait.
      parkForChildren(carrier, job, outlasts: isPassedOn)
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

  private var hasChildren: Bool { lock.withLock { children.count > 0 } }

  /// The owners' numbers of the children that have not ended.
  var unfinished: [UInt] {
    var numbers: [UInt] = []
    while true {
      lock.lock()
      let count = children.count
      if count <= numbers.capacity { children.forEach { numbers.append($0.record.ownerNumber) } }
      lock.unlock()
      if count <= numbers.capacity { return numbers }
      numbers.reserveCapacity(count)
    }
  }

  /// What the scope throws in place of the body's outcome; after its end.
  fileprivate var thrown: (any Error)? { lock.withLock { failed.first ?? (cutsChildren ? outside : nil) } }
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
/// Suspends until the last child has ended. If the coroutine is cancelled, by its job, a deadline or a scope around
/// this one, the children are cancelled, and the cancellation error is thrown at the end: also if `body` returns a
/// value, because it was in a shield or has caught the error. Only if all children had ended by then, its value is
/// returned. After ``Scope/cancel(_:)``, a body that returns a value still succeeds.
@discardableResult
@available(*, noasync, message: "use `withThrowingTaskGroup`, or await the `value` of a coroutine that does this")
public func co_scope<Output>(
  failures: Scope.Failures = .together,
  _ body: (Scope) throws -> Output
) throws -> Output {
  let (_, job) = try Carrier.requireJob()
  try job.checkCancelled()
  return try runScope(job, failures, body)
}

/// What `co_scope` does, also in a coroutine that is cancelled.
@inline(__always)
func runScope<Output>(_ job: JobRef, _ failures: Scope.Failures, _ body: (Scope) throws -> Output) throws -> Output {
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
    scope.joinChildren()
    scope.reportLateFailures()
    if let error = scope.thrown { throw error }
    return try outcome.get()
  }
}

// MARK: - Launching a child

extension Scope {
  /// Launches a child, as ``co_launch(on:name:stack:start:file:line:_:)-(DispatchQueue?,_,_,_,_,_,_)`` does.
  ///
  /// In a cancelled scope, the child's body never runs. The captures of such a body are released when its queue comes
  /// to the child, which may be after the scope's end. Does not suspend; any thread. Traps if the scope has ended.
  @inlinable @discardableResult
  public func launch<Success: Sendable>(
    on queue: DispatchQueue? = nil,
    name: String? = nil,
    stack: StackSize = .standard,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Success
  ) -> Job<Success> {
    let job = Job(
      scheduler: Launch.scheduler(for: queue),
      name: name,
      stack: stack,
      launchSite: LaunchSite(file: file, line: line),
      body: body
    )
    launch(job, holding: queue)
    return job
  }

  /// Launches a child on any ``LaunchTarget``, as on a queue.
  ///
  /// In a cancelled scope, the child's body never runs. Does not suspend; any thread. Traps if the scope has ended.
  @inlinable @discardableResult @_disfavoredOverload
  public func launch<Success: Sendable>(
    on target: some LaunchTarget,
    name: String? = nil,
    stack: StackSize = .standard,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Success
  ) -> Job<Success> {
    let destination = target._destination
    let job = Job(
      scheduler: destination.forLaunch,
      name: name,
      stack: stack,
      launchSite: LaunchSite(file: file, line: line),
      body: body
    )
    launch(job, holding: destination.anchor)
    return job
  }
}

// MARK: - What a failure does

extension Scope {
  /// What the failure of a child does to its scope.
  public struct Failures: Sendable, Hashable {
    let areIsolated: Bool

    /// The first failure, of a child or of the body, cancels the others, and is thrown at the end.
    public static var together: Failures { Failures(areIsolated: false) }

    /// A child's failure cancels neither its siblings nor the body.
    public static var isolated: Failures { Failures(areIsolated: true) }
  }
}
