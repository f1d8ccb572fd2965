internal import CCoroutineRuntime
public import Dispatch
public import Synchronization

/// A value, or the failure to get one, that becomes known later.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/ArticleSnippets.swift -->
/// ```swift
/// let answer = Promise<Int>()
/// startWork { answer.fulfill($0) }
/// let value = try co_await(answer)
/// ```
///
/// Any number of coroutines, handlers and Tasks can wait for it and get the same value, so values are Sendable. It
/// settles once: it is fulfilled, rejected, or rejected by `cancel`. Settling, attaching handlers and cancelling may
/// race on any threads.
///
/// Handlers run on the queue that `on:` names. Without it, they run on the queue of the coroutine or handler that
/// attaches them, or else on a global queue. A handler never runs inside the attaching or the settling call, and never
/// under a lock. Each runs once, in the order of attaching. An outcome without a handler (a failure at `then`) is
/// passed on at once.
///
/// If nothing can settle the promise any more, it rejects with ``CoroutineError/abandoned``. If a rejected promise is
/// released and nothing has observed the failure, it is reported to ``CoroutineRuntime/unhandledErrorHandler`` with the
/// launch site of the promise, unless the failure is a `CancellationError` or was ``AnyPromise/ignore()``d.
public class Promise<Success: Sendable>: AnyPromise, Awaitable, @unchecked Sendable {
  // Sound because it adds no state to AnyPromise. Subclasses that do name their guard (Promise+Then.swift).

  /// Creates a pending promise.
  @inlinable
  public init(file: StaticString = #fileID, line: UInt = #line) {
    super.init(Completion(for: Success.self), LaunchSite(file: file, line: line))
  }

  @inlinable
  init(launchSite: LaunchSite) { super.init(Completion(for: Success.self), launchSite) }

  @inlinable
  init(settled result: consuming Result<Success, any Error>, _ launchSite: LaunchSite) {
    super.init(Completion(for: Success.self), launchSite)
    _ = settle(result)
  }

  /// Creates a promise and runs `body` at once, on the caller, with a resumer that settles it.
  ///
  /// An error that `body` throws rejects the promise. If the resumer is released unused, the promise rejects with
  /// ``CoroutineError/abandoned``. A second use of the resumer is reported and ignored. `onCancel` is called once if
  /// the promise is cancelled, and released when it settles.
  public init(
    onCancel: (@Sendable () -> Void)? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: (Resumer<Success>) throws -> Void
  ) {
    super.init(Completion(for: Success.self), LaunchSite(file: file, line: line))
    self.onCancel = onCancel
    // Held until the thrown error has been stored: a release before that would reject with `abandoned`.
    let resumer = Resumer(PromiseTarget(self))
    do {
      try body(resumer)
    } catch {
      fail(error)
    }
    withExtendedLifetime(resumer) {}
  }

  /// Returns a fulfilled promise.
  @inlinable
  public static func value(_ value: Success) -> Promise {
    Promise(settled: .success(value), LaunchSite(file: #fileID, line: #line))
  }

  /// Returns a rejected promise.
  public static func failure(_ error: any Error, file: StaticString = #fileID, line: UInt = #line) -> Promise {
    Promise(settled: .failure(error), LaunchSite(file: file, line: line))
  }

  // MARK: Settling

  /// Fulfils the promise.
  ///
  /// - Returns: False if the promise was settled before or follows another one; then nothing has changed.
  ///
  /// Never suspends. May be called on any thread.
  @inlinable @inline(__always) @discardableResult
  public final func fulfill(_ value: Success) -> Bool {
    // Always inlined, as `succeed` is: without it a promise that is settled costs 629 instructions, not 600.
    succeed(value, fromOutside: true)
  }

  /// Rejects the promise.
  ///
  /// - Returns: False if the promise was settled before or follows another one; then nothing has changed.
  ///
  /// Never suspends. May be called on any thread.
  @discardableResult public final func reject(_ error: any Error) -> Bool { fail(error, fromOutside: true) }

  /// Settles this promise as `other` is settled, or will be.
  ///
  /// From now on only a cancellation settles it otherwise. The cancellation goes on to `other` if nothing else waits
  /// for it. Does nothing if this promise is settled or follows another one. If `other` waits for this promise,
  /// directly or through any number of links and combinators, this one rejects with ``CoroutineError/cycle``. A promise
  /// that is derived from others, by a link or a combinator, settles with the outcome that comes first: its own, or
  /// that of `other`. Never suspends. May be called on any thread.
  @inlinable
  public final func follow(_ other: Promise) {
    guard isFree else { return followAdditionally(other) }
    guard lockIn() else { return }
    if !wait(for: other, Self.copier) { return letGo(of: other) }
    skipFollower()
  }

  /// Follows `other` from a link whose own waiter is in use, because it waits for its upstream or has a handler to run.
  @usableFromInline
  final func followAdditionally(_ other: Promise) {
    guard lockIn() else { return }
    var outcome: Result<Success, any Error>?
    let member = Members(self, 1, .leftRunning, isPassive: false) { other, _, _ in
      outcome = other.completion.settledOutcome(as: Success.self)
      return true
    } finish: { promise in
      _ = unsafeDowncast(promise, to: Promise.self).settle(outcome.unsafelyUnwrapped)
    }
    if !wait(for: other, member) { letGo(of: other) }
  }

  @inlinable static var copier: PromiseRunner {
    { promise, source, _ in
      guard let source else { return }
      unsafeDowncast(promise, to: Promise<Success>.self).copy(source)
    }
  }

  /// Copies the value of a fulfilled promise.
  @inlinable @inline(__always)
  final func copy(_ source: AnyPromise) { _ = succeed(source.completion.value(as: Success.self), fromOutside: false) }

  @inlinable @inline(__always)
  final func succeed(_ value: consuming Success, fromOutside: Bool) -> Bool {
    let box = Completion.box(for: Success.self)
    completion.lock()
    guard completion.known.state.load(ordering: .relaxed) == Completion.pending, !(fromOutside && isLocked) else {
      completion.unlock()
      box?.deallocate()
      return false
    }
    completion.store(value, box)
    publish(Completion.succeeded)
    return true
  }

  @inlinable @discardableResult
  final func settle(_ result: consuming Result<Success, any Error>, fromOutside: Bool = false) -> Bool {
    switch result {
    case .success(let value): succeed(value, fromOutside: fromOutside)
    case .failure(let error): fail(error, fromOutside: fromOutside)
    }
  }

  // MARK: Reading and waiting

  /// The outcome, or nil while the promise is pending.
  ///
  /// Reading the outcome is not handling it: a failure that is only read is still reported as unhandled.
  public final var result: Result<Success, any Error>? { completion.outcome(as: Success.self) }

  /// The value, for async code.
  ///
  /// Suspends the Task, never blocks a thread. If the awaiting Task is cancelled, this throws `CancellationError` at
  /// once. If the Task was the promise's last consumer, and the promise has work that can be cancelled, the promise is
  /// cancelled too; see ``uncancelled``.
  public final var value: Success {
    get async throws {
      try await awaitSettled()
      return try completion.get(as: Success.self)
    }
  }

  /// Calls `completion` once, in the settling call, or at once if the promise is settled.
  ///
  /// Before that, every coroutine and promise that waits for this promise, through any links, has been told. Callbacks
  /// are called in the order of `observe`, one after the other, outside every lock. A callback that is added while
  /// another one is being called is called after it. A callback may link and settle promises as other code does. If it
  /// settles the next promise, that one's callbacks nest on the stack; ``follow(_:)`` does not nest.
  @_implements(Awaitable,observe(_:))
  public final func _observe(_ completion: @escaping @Sendable (Result<Success, any Error>) -> Void)
    -> AwaitableObservation
  {
    // Sound because a promise calls its callbacks while it is in use or, at the latest, in its deinit.
    let callback = ClosureCallback { [unowned(unsafe) self] in
      completion(self.completion.settledOutcome(as: Success.self))
    }
    guard link(callback) else {
      completion(self.completion.settledOutcome(as: Success.self))
      return AwaitableObservation {}
    }
    // Weak, because the observation may be cancelled at any time, and must not keep the promise from being abandoned.
    return AwaitableObservation { [weak self] in _ = self?.unlink(callback) }
  }

  /// Cancels the promise.
  @_implements(Awaitable,cancelAwaited())
  public final func _cancelAwaited() { cancel() }

  /// Suspends the coroutine until the promise is settled, as co_await does.
  ///
  /// If the coroutine is cancelled, this throws the coroutine's cancellation error at once. If the coroutine was the
  /// promise's last consumer, and the promise has work that can be cancelled, the promise is cancelled too; see
  /// ``uncancelled``.
  @available(*, noasync, message: "await `value`")
  @inlinable
  public final func _awaitValue() throws -> Success {
    // For the reason given in Job.join.
    defer { withExtendedLifetime(self) {} }
    do { try completion.wait(.promise) } catch {
      consumerHasFailed()
      throw error
    }
    return try completion.get(as: Success.self)
  }

  /// The same outcome, for a consumer whose cancellation must not cancel this promise.
  ///
  /// `try co_await(shared.uncancelled)` and `try await shared.uncancelled.value` leave the work of `shared` running
  /// when the waiting coroutine or Task is cancelled, also if it was the last one to wait. Each access returns a new
  /// promise, which is a consumer of this one until either settles, or until nothing refers to the new one and nothing
  /// waits for it. Does not suspend. May be called on any thread.
  public final var uncancelled: Promise {
    let made = Promise(launchSite: launchSite)
    made.isPassive = true
    made.node.pointee.keepsUpstream = true
    return link(made, nil, [], Self.copier)
  }
}

extension Promise: CustomStringConvertible {
  /// The type of the value and the state.
  public var description: String {
    switch result {
    case nil: "Promise<\(asWord(Success.self))>(pending)"
    case .success(let value)?: "Promise<\(asWord(Success.self))>(fulfilled: \(asLine(value)))"
    case .failure(let error)?: "Promise<\(asWord(Success.self))>(rejected: \(asLine(error)))"
    }
  }
}

/// Lets a resumer settle a promise.
final class PromiseTarget<Success: Sendable>: ResumeTarget<Success>, @unchecked Sendable {
  // Sound because `promise` is immutable and guards itself, and `wasUsed` is atomic.
  private let promise: Promise<Success>
  // Not shared: each use settles the promise, which tells.
  private let wasUsed = Atomic(false)
  init(_ promise: Promise<Success>) {
    self.promise = promise
    super.init()
  }
  override func report(_ error: any Error) { promise.report(error) }

  override func resume(_ outcome: Result<Success, any Error>) -> OneShot.State {
    let isFirst = !wasUsed.exchange(true, ordering: .relaxed)
    if promise.settle(outcome, fromOutside: true) { return .pending }
    // A first use that is too late is not an error: the promise was cancelled, or settled by other code.
    return isFirst || promise.node.pointee.wasCancelled.load(ordering: .acquiring) ? .detached : .settled
  }
}

// MARK: - Creating

// The creation of promises. Callbacks are in Conveniences.swift, and timers in Promise+Then.swift.

extension Promise {
  /// Creates a pending promise, and a resolver that settles it.
  ///
  /// The resolver is used once, on any thread. If it is released unused, the promise rejects with
  /// ``CoroutineError/abandoned``. `onCancel` is called once if the promise is cancelled, and released when it settles.
  public static func pending(
    onCancel: (@Sendable () -> Void)? = nil,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> (promise: Promise, resolver: Resumer<Success>) {
    let promise = Promise(file: file, line: line)
    promise.onCancel = onCancel
    return (promise, Resumer(PromiseTarget(promise)))
  }

  /// Runs `body` at once, on the caller, and returns a promise that is settled with its result or error.
  public static func trying(file: StaticString = #fileID, line: UInt = #line, _ body: () throws -> Success) -> Promise {
    Promise(settled: Result { try body() }, LaunchSite(file: file, line: line))
  }

  /// Runs `body` at once, on the caller, and returns the promise that it returns.
  ///
  /// If `body` throws, the call returns a promise that is rejected with the error.
  public static func trying(file: StaticString = #fileID, line: UInt = #line, _ body: () throws -> Promise) -> Promise {
    do {
      return try body()
    } catch {
      return .failure(error, file: file, line: line)
    }
  }

  /// Runs `body` as a block of `queue`, where it may block, and returns a promise for its result or error.
  ///
  /// If the promise is cancelled before the block begins, `body` never runs. It sees the locals and task-locals that
  /// are bound here. A forked child whose parent had used the runtime or Dispatch ends here.
  public static func running(
    on queue: DispatchQueue,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () throws -> Success
  ) -> Promise {
    ForkedChild.use(CCO_USES_QUEUES)
    let promise = Promise(file: file, line: line)
    // The work is the block, which checks whether the promise is pending.
    promise.onCancel = {}
    queue.async(
      execute: LocalBinding.binding {
        if promise.isPending { promise.settle(Result { try body() }, fromOutside: true) }
      }
    )
    return promise
  }

  /// Runs async code as a Task, and returns a promise for its result or error.
  ///
  /// Cancelling the promise cancels the Task. The Task sees the current task-locals and ``CoroutineLocal`` bindings.
  /// A forked child whose parent had used the runtime or Dispatch ends here.
  public static func task(
    priority: TaskPriority? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ operation: @escaping @Sendable () async throws -> Success
  ) -> Promise {
    ForkedChild.use(CCO_USES_QUEUES)
    let task = SetOnce<Task<Void, Never>>()
    let cancel: @Sendable () -> Void = { task.value?.cancel() }
    return Promise(onCancel: cancel, file: file, line: line) { done in
      let started = LocalBinding.carried {
        Task(priority: priority) {
          do {
            done.resume(try await operation())
          } catch {
            done.fail(error)
          }
        }
      }
      task.set(started)
    }
  }
}

extension Promise where Success == Void {
  /// Fulfils the promise.
  ///
  /// Returns false if it was settled before.
  @discardableResult public final func fulfill() -> Bool { fulfill(()) }
}

// MARK: - Blocking a thread

// Blocking a thread for a promise: for tests, command-line tools, and threads that serve no queue.

extension Promise {
  /// Blocks the calling thread until the promise has settled, and returns its value or throws its error.
  ///
  /// - Throws: The error of the promise. ``CoroutineError/wouldDeadlock``, at once, when called in a coroutine, in a
  ///   handler, or on a queue that a handler on the way to the value needs. A queue that other code needs is not
  ///   detected.
  ///
  /// In the body of a ``co_blocking(_:)`` the thread does not count towards ``CoroutineRuntime/blockingThreadLimit``
  /// while it waits.
  ///
  /// Does not cancel the promise, and cannot be cancelled. On the main thread it runs the blocks of the main queue
  /// meanwhile, as ``Job/blockingWait()`` does.
  @discardableResult
  @available(*, noasync, message: "await `value`")
  public final func blockingWait() throws -> Success {
    LockCheck.mayWait()
    if !completion.isSettled { try Host.requireReal { "Promise.blockingWait, which blocks its thread" } }
    // A carrier without a job runs handlers.
    if Carrier.current != nil { throw CoroutineError.wouldDeadlock(because: .blocksCoroutine) }
    if !completion.isSettled {
      ForkedChild.mayWait()
      if needsThisThread { throw CoroutineError.wouldDeadlock(because: .blocksHandler) }
      completion.blockThread(for: { "a promise that was created at \(launchSite)" })
    }
    ignore()
    return try completion.get(as: Success.self)
  }
}

extension AnyPromise {
  /// Called when a coroutine's wait for this promise has thrown.
  ///
  /// Cancels the promise if the coroutine was cancelled, and was the last consumer.
  @usableFromInline @inline(never)
  final func consumerHasFailed() { if co_isCancelled { consumerWasCancelled() } }

  /// Whether a handler that must run before this promise can settle needs the thread that is to be blocked.
  fileprivate final var needsThisThread: Bool {
    // Released at the end, after the lock.
    var held: [Upstreams] = []
    defer { withExtendedLifetime(held) {} }
    // Asked after the lock, because the loop of another library answers by code of its own.
    var schedulers: [ObjectIdentifier: Scheduler] = [:]
    let isHandlerHere = PromiseGraph.lock.pointee.withLock {
      PromiseGraph.find(from: ref, holding: &held) { promise in
        switch promise.settlingTarget {
        case .scheduler(let scheduler, _): schedulers[ObjectIdentifier(scheduler)] = scheduler
        case .ordered(let handlers): return handlers.isRunningHere
        case nil: break
        }
        return false
      }
    }
    return isHandlerHere || schedulers.values.contains { $0.isCurrent }
  }
}

extension PromiseRef {
  /// What runs the handler, or the coroutine of a run, that has to settle this pending promise; nil if there is none.
  fileprivate var settlingTarget: HandlerTarget? {
    completion.lock()
    defer { completion.unlock() }
    guard !completion.known.isSettled,
      node.pointee.upstreams?.run != nil || node.pointee.phase != .free && node.pointee.kind.rawValue != 0
    else { return nil }
    // The handler or the run, which is still to come, keeps the scheduler in memory.
    if let scheduler = node.pointee.scheduler { return .scheduler(scheduler.takeUnretainedValue(), nil) }
    if let ordered = node.pointee.ordered { return .ordered(ordered) }
    return nil
  }
}

// MARK: - Async code

extension AnyPromise {
  /// Suspends the Task until the promise is settled, or throws `CancellationError` once the Task is cancelled.
  ///
  /// In the second case the promise is cancelled too if the Task was its last consumer.
  final func awaitSettled() async throws {
    guard !completion.isSettled else { return ignore() }
    await PromiseWait(self).wait()
    guard completion.isSettled else {
      consumerWasCancelled()
      throw CancellationError()
    }
  }
}

/// A Task's wait for a promise.
private final class PromiseWait: TaskWait, @unchecked Sendable {
  // Sound because `promise` never changes, and guards itself.
  private let promise: AnyPromise

  init(_ promise: AnyPromise) {
    self.promise = promise
    super.init()
  }

  override func link() -> Bool { promise.link(self) }
  override func leave() -> Bool { promise.unlink(self) }
}

// MARK: - Select

extension Promise {
  /// Returns a case for ``co_select(biased:_:)`` that waits for the promise.
  ///
  /// Ready when the promise is settled; `body` gets the outcome. If another case is selected, the promise is unchanged.
  @inlinable
  public final func onAwait<R>(_ body: @escaping (sending Result<Success, any Error>) throws -> R) -> SelectCase<R> {
    SelectCase(
      PromiseAwait<Success>.self,
      target: self,
      lock: completion.lockAddress,
      queue: completion.waiterAddress,
      taking: body
    )
  }
}

@usableFromInline
enum PromiseAwait<Success: Sendable>: SelectOperation {
  @inlinable
  static func attempt(_ promise: Promise<Success>, _ waiter: SelectWaiterRef) -> SelectAnswer {
    promise.completion.known.isSettled ? .yes : .no
  }
  @inlinable
  static func finish(_ promise: Promise<Success>, _ waiter: SelectWaiterRef) -> Result<Success, any Error> {
    promise.completion.seenOutcome(as: Success.self)
  }
}

// MARK: - Dumps

// The description of a promise, for dumps.

extension AnyPromise: OwnedSource {
  /// The coroutine of the library's that settles it, of a retry for example, or the job that it copies.
  ///
  /// Other code may settle it too. That counts as a cancellation.
  func owners(awaitedBy job: JobRef) -> [UInt]? { settlingOwner.map { [$0] } }

  var waitLock: UnsafePointer<SpinLock> { completion.lockAddress }
  func inspect(_ names: JobNames) -> String { "\(identity), created at \(launchSite.description)" }
  func verb(of queue: UInt?) -> String { "await" }
}

// MARK: - The result of a job as a promise

extension Job {
  /// A promise for the job's result, for a consumer whose cancellation must not cancel the job.
  ///
  /// `try await job.uncancelled.value` throws at once when the Task is cancelled, and leaves the job running. Starts a
  /// lazy job. Each access returns a new promise, which is released when nothing refers to it and nothing waits for it,
  /// also before the job ends. Does not suspend. May be called on any thread.
  public var uncancelled: Promise<Success> {
    let copy = JobCopy(self)
    start()
    completion.touch()
    if !completion.add(copy.callback, observes: .byItself) { copy.settle() }
    return copy
  }
}

/// A promise that settles as a job does.
private final class JobCopy<Success: Sendable>: Promise<Success>, @unchecked Sendable {
  // Sound because `job` is a constant, and `callback` is made before another thread has the copy.
  private let job: Job<Success>
  /// The job's callback for this copy, whose settling has observers.
  fileprivate private(set) lazy var callback = ClosureCallback(isForeign: true) { [weak self] in
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
