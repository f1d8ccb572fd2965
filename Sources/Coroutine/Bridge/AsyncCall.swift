internal import CCoroutineRuntime
import Synchronization

// A coroutine waits for a Task that it has started for that purpose.
//
// The coroutine starts the Task immediately, so the first part runs on the coroutine's stack. If the Task ends in its
// first part, the coroutine never parks. During the first part the carrier has no job, and the thread has no
// CoroutineLocals, because every part of a Task is outside any coroutine, and sees the bindings that the Task carries.
// So no code can wait in the first part, and the thread stays the same until the coroutine runs again.
//
// The coroutine and the Task share a cell (OneShot.swift). The outcome is written into the coroutine's frame. So the
// call has no type parameter, and allocates the cell, the Task and its closure.
//
// There are three kinds of calls.
//   co_await        a cancellation leaves the Task
//   co_awaitToEnd   the cell is to the end: a cancellation does not leave the Task
//   co_isolated     a body in the coroutine's frame runs in the Task, on an actor. The call is left until the body
//                   begins; from then on it is to the end. `beginBody` decides.
//
// Invariants
//  1. The Task touches the coroutine's frame only under `lock` if `settle` has returned true, or between a `beginBody`
//     that has returned true and `end`. In both cases the coroutine is inside the call (OneShot.swift, 3 and 5).
//  2. The Task's parts run on the coroutine's scheduler, as its preferred executor. From before the coroutine parks
//     until the Task's end the call holds a pin of that scheduler, because the coroutine may leave first. `isPinned`
//     changes once, under `lock` and in PENDING, so the Task may read it after that.
//  3. Exactly one of the two happens: the body runs and the call has its outcome, or the body never runs and the call
//     throws. A Task whose coroutine has left touches no frame: it holds only the call and the actor.

@usableFromInline
final class AsyncCall: @unchecked Sendable {
  // Sound because `one` and `isPinned` are accessed as said above, and the rest by the coroutine only.
  /// Accessed through `one` only.
  @exclusivity(unchecked) private var storage: OneShot
  private let lock = SpinLock()
  /// The coroutine's `Result<Output, any Error>?`.
  @usableFromInline let outcomeAddress: UnsafeMutableRawPointer
  @exclusivity(unchecked) private var isPinned = false
  private let scheduler: Scheduler
  /// The coroutine's carrier while the first part runs.
  private let carrier: UnsafeMutablePointer<Carrier>
  /// The CoroutineLocals of the thread while the first part runs, which sees those that the Task carries.
  @exclusivity(unchecked) private var localsOfThread: UnsafeMutableRawPointer?
  @usableFromInline let carriesLocals: Bool

  private init(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    _ outcomeAddress: UnsafeMutableRawPointer,
    toEnd: Bool
  ) {
    storage = OneShot(job, toEnd: toEnd)
    self.carrier = carrier
    scheduler = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
    self.outcomeAddress = outcomeAddress
    carriesLocals = job.pointee.locals != nil
    checkAddress(one, of: &storage)
  }

  private var one: OneShotRef { propertyAddress(in: self, at: 0, as: OneShot.self) }

  /// Begins a call that writes its outcome to `outcomeAddress`; throws the cancellation error.
  @usableFromInline
  static func begin(_ outcomeAddress: UnsafeMutableRawPointer, toEnd: Bool) throws -> AsyncCall {
    let (carrier, job) = try Carrier.beginWaiting()
    Host.touchesEverything()
    return AsyncCall(carrier, job, outcomeAddress, toEnd: toEnd)
  }

  /// Starts the Task: calls `start`, which runs outside the coroutine.
  @inlinable @inline(__always)
  func start(_ start: () -> Task<Void, Never>) -> Task<Void, Never> {
    guard carriesLocals else {
      hide()
      return start()
    }
    return startCarryingLocals(start)
  }

  @usableFromInline @inline(never)
  func startCarryingLocals(_ start: () -> Task<Void, Never>) -> Task<Void, Never> {
    LocalBinding.carried {
      hide()
      return start()
    }
  }

  /// Leaves the coroutine until `wait`.
  @usableFromInline
  func hide() {
    carrier.pointee.job = nil
    localsOfThread = cco_layer().pointee.locals
    cco_layer().pointee.locals = nil
  }

  @usableFromInline var executor: any TaskExecutor { scheduler.taskExecutor }
  @usableFromInline var priority: TaskPriority? { scheduler.host.taskPriority }

  // MARK: The body of co_isolated

  /// Begins the body in the coroutine's frame; returns false if the coroutine has left the call, or is cancelled.
  ///
  /// Called by the Task. After true it calls `end`, after false `unpin`.
  func beginBody() -> Bool { lock.withLock { one.holdToEnd() } }

  // MARK: The Task's end

  /// Ends the call, on any thread.
  @inlinable
  func end<Output>(_ outcome: consuming Result<Output, any Error>) {
    if beginEnd() {
      outcomeAddress.assumingMemoryBound(to: Result<Output, any Error>?.self).pointee = outcome
      finishEnd()
    }
    unpin()
  }

  /// Returns true, with the lock held, if the coroutine still needs the outcome.
  @usableFromInline
  func beginEnd() -> Bool {
    lock.lock()
    if one.settle() { return true }
    lock.unlock()
    return false
  }

  @usableFromInline
  func finishEnd() { one.wake(leaving: lock) }

  /// Ends the Task's use of the scheduler.
  @usableFromInline
  func unpin() { if isPinned { scheduler.unpin() } }

  // MARK: The coroutine

  /// Suspends until the Task has ended.
  ///
  /// If the coroutine is cancelled, cancels the Task, and throws or, if the call is to the end, waits on.
  @usableFromInline
  func wait(for task: Task<Void, Never>) throws {
    let job = one.job
    carrier.pointee.job = job
    cco_layer().pointee.locals = localsOfThread
    // The first part may have cancelled this coroutine, and that interrupt did not find it running.
    if job.pointee.flags.load(ordering: .relaxed) & JobFlags.needsCancellationCheck != 0 { job.cancelScopes() }
    // Most calls end here: if the Task has ended on this stack, no other thread has the call.
    if endsOrPins() { return }
    try one.wait(.task, lock, onCancel: { task.cancel() })
  }

  /// Whether the Task has ended; otherwise pins the scheduler of a queue.
  private func endsOrPins() -> Bool {
    lock.lock()
    defer { lock.unlock() }
    // The running job holds the queue.
    if one.pointee.state == .pending, scheduler.readyQueue.pointee.workerPool == nil {
      isPinned = true
      scheduler.pin(nil)
    }
    return one.pointee.state == .settled
  }
}

// MARK: - co_await

/// Runs async code from a coroutine, and suspends until it has ended.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/AsyncSnippets.swift -->
/// ```swift
/// let lengths = co_launch {
///   try words.map { word in try co_await { try await server.length(of: word) } }
/// }
/// ```
///
/// The code runs as a Task that prefers the executor of the coroutine's queue, or of the worker pool.
/// - The first part, up to the first suspension, runs at once on the coroutine's own stack. If the code never suspends,
///   the coroutine does not suspend either.
/// - The parts after a suspension run on the coroutine's queue, between its coroutines. The last part resumes the
///   coroutine. Only an actor with another executor makes a part run on another thread.
///
/// All parts, also the first one, are outside any coroutine: in them, functions that wait throw
/// ``CoroutineError/notInCoroutine``.
///
/// The Task gets the coroutine's task-locals and ``CoroutineLocal`` bindings, and the priority that corresponds to the
/// queue's quality of service; if the queue has none, the thread's.
///
/// If the coroutine is cancelled, the Task is cancelled, and the call throws at once, without waiting for the Task's
/// end. A CancellationError of the Task is thrown like any other error. If async code awaits a job by ``Job/value``
/// and nothing else waits for the job, cancelling that Task cancels the job.
///
/// - Throws: The error of `operation`; the cancellation error, without calling `operation` if the coroutine was
///   cancelled before; ``CoroutineError/notInCoroutine`` outside a coroutine.
@inlinable @discardableResult
@available(*, noasync, message: "call the code with `await`")
public func co_await<Output: Sendable>(_ operation: @escaping @Sendable () async throws -> Output) throws -> Output {
  try AsyncCall.outcome(toEnd: false) { call in
    Task.immediate(priority: call.priority, executorPreference: call.executor) {
      do {
        call.end(Result<Output, any Error>.success(try await operation()))
      } catch {
        call.end(Result<Output, any Error>.failure(error))
      }
    }
  }
}

/// Runs async code from a coroutine, and suspends until it has ended, even if the coroutine is cancelled meanwhile.
///
/// As ``co_await(_:)-(()->Output)``, but `operation` may use everything that the coroutine may use, also `inout`
/// variables and values that are not Sendable: the coroutine does not run until `operation` has ended.
///
/// ```swift
/// var buffer = Buffer()
/// try co_awaitToEnd { try await stream.read(into: &buffer) }
/// ```
///
/// If the coroutine is cancelled, the Task is cancelled, and the call continues to wait for its end. It returns or
/// throws the outcome of `operation`.
///
/// - Throws: The error of `operation`; the cancellation error, if the coroutine was cancelled before the call;
///   ``CoroutineError/notInCoroutine`` outside a coroutine.
@discardableResult
@available(*, noasync, message: "call the code with `await`")
public func co_awaitToEnd<Output>(_ operation: () async throws -> Output) throws -> Output {
  try withoutActuallyEscaping(operation) { operation in
    try withUnsafePointer(to: operation) { operation in
      // Sound because only the Task uses the function and its captures until the call has ended.
      nonisolated(unsafe) let operation = operation
      return try AsyncCall.outcome(toEnd: true) { call in
        Task.immediate(priority: call.priority, executorPreference: call.executor) {
          // The closure's last use of the function is over when `run` returns.
          call.end(await AsyncCall.run(operation))
        }
      }
    }
  }
}

extension AsyncCall {
  /// Calls `start`, which starts a Task that ends the call, outside the coroutine; suspends until then.
  @inlinable @inline(__always)
  static func outcome<Output>(toEnd: Bool, _ start: (AsyncCall) -> Task<Void, Never>) throws -> Output {
    var outcome: Result<Output, any Error>?
    try withUnsafeMutablePointer(to: &outcome) { address in
      let call = try begin(UnsafeMutableRawPointer(address), toEnd: toEnd)
      try call.wait(for: call.start { start(call) })
    }
    return try outcome.unsafelyUnwrapped.received()
  }

  /// Calls an operation that is in the coroutine's frame.
  @inline(never)
  fileprivate static func run<Output>(
    _ operation: UnsafePointer<() async throws -> Output>
  ) async -> Result<Output, any Error> {
    do {
      return .success(try await operation.pointee())
    } catch {
      return .failure(error)
    }
  }
}

// MARK: - Values for async code

// If a Task that waits for a job is cancelled, there are two cases:
// - If another consumer waits for the job (a coroutine that joins it, another Task, an observer), the Task removes its
//   callback and throws CancellationError. The job continues.
// - If the Task is the last consumer, it cancels the job, and continues to wait for the job's outcome.
//
// Whether there is another consumer is decided under the completion's lock, where the callback is taken out as well. So
// of several Tasks that are cancelled at once, the last one finds no other consumer. A consumer that arrives after the
// decision finds a cancelled job, as if it had arrived later. The callbacks of `finally` and of scopes, which do not
// take the result, are no consumers.

extension Job {
  /// The result, for async code.
  ///
  /// Suspends the Task, never blocks a thread. Starts a lazy job. If the awaiting Task is cancelled:
  /// - if nothing else waits for the job's result, the job is cancelled, and its outcome is returned or thrown;
  /// - if something else waits for it, the job continues, and this throws `CancellationError` at once.
  ///
  /// ``uncancelled`` never cancels the job.
  public var value: Success {
    get async throws {
      start()
      guard !completion.isSettled else {
        // Without a callback, because it would be called after all callbacks that are being called now.
        completion.pointee.isObserved.store(true, ordering: .relaxed)
        return try completion.get(as: Success.self)
      }
      await JobWait(self).wait()
      guard completion.isSettled else { throw CancellationError() }
      return try completion.get(as: Success.self)
    }
  }
}

/// A Task's wait for a job.
private final class JobWait: TaskWait, @unchecked Sendable {
  // Sound because `job` never changes, and guards itself.
  private let job: AnyJob

  init(_ job: AnyJob) {
    self.job = job
    super.init()
  }

  override func link() -> Bool {
    job.completion.touch()
    return job.completion.add(self)
  }

  override func leave() -> Bool {
    switch job.completion.removeUnlessLast(self) {
    case .removed: return true
    case .isLast: job.cancel()
    case .hasFired: break
    }
    return false
  }
}

// MARK: - Sleeps of the clock

extension CoroutineClock: _Concurrency.Clock {
  /// Suspends the Task until the clock shows `deadline`, never less.
  ///
  /// In a Task that a coroutine of a world awaits, until the world's time. `tolerance` has no effect: timers are exact.
  /// If the Task is cancelled, it throws `CancellationError` at once. In a coroutine, use ``co_delay(until:)``.
  public func sleep(until deadline: Instant, tolerance: Duration? = nil) async throws {
    try Task.checkCancellation()
    // The Task's cancellation cancels the job, whose only consumer the Task is.
    try await co_launch(name: "sleep", start: .immediate) { try co_delay(until: deadline) }.value
  }
}
