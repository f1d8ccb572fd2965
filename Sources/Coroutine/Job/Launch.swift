internal import CCoroutineRuntime
public import Dispatch
import Synchronization

/// The time at which a launched body starts.
public struct StartMode: Sendable, Hashable, CustomStringConvertible {
  @usableFromInline enum Kind: UInt8, Sendable { case queued, immediate, lazy }

  @usableFromInline let kind: Kind

  @inlinable
  init(_ kind: Kind) { self.kind = kind }

  /// On its queue, never before `co_launch` returns.
  @inlinable public static var queued: StartMode { StartMode(.queued) }
  /// At once, on the caller's thread, until it first suspends; after that on its queue.
  @inlinable public static var immediate: StartMode { StartMode(.immediate) }
  /// At the first join, await or wait; a lazy job that is released before that never runs.
  @inlinable public static var lazy: StartMode { StartMode(.lazy) }

  /// `queued`, `immediate` or `lazy`.
  public var description: String { "\(kind)" }
}

/// Launches a coroutine: runs `body` on its own guarded stack, on the scheduler of `queue`.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideSnippets.swift -->
/// ```swift
/// let job = co_launch(on: queue, name: "first order") {
///   let page = try fetch("/orders/1")
///   return page.text.count
/// }
/// let length = try job.join()
/// ```
///
/// Does not suspend, except that an immediate body runs until it first suspends; may be called anywhere. A forked
/// child of a process that had launched before ends here, with a sentence.
///
/// The body sees the bindings that are current at the launch: those of every ``CoroutineLocal``, and task-locals as a
/// Task sees them. Passing on CoroutineLocals, and the task-locals that the calling coroutine has itself inherited,
/// takes constant time. Task-locals that the caller has bound itself are copied, one value for each.
///
/// - Parameters:
///   - queue: The queue on which it runs. `nil` means the queue of the current coroutine; outside a coroutine, the
///     shared parallel scheduler. A concurrent queue counts as one serial worker of it.
///   - name: A name for dumps and reports.
///   - stack: The size of its stack.
///   - start: The time at which it starts.
///   - file: The launch site, for dumps and reports.
///   - line: The line of the launch site.
///   - body: The code to run. A failure that is never observed goes to ``CoroutineRuntime/unhandledErrorHandler``.
/// - Returns: The handle, which may be released at once.
@inlinable @discardableResult
public func co_launch<Success: Sendable>(
  on queue: DispatchQueue? = nil,
  name: String? = nil,
  stack: StackSize = .standard,
  start: StartMode = .queued,
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
  job.launch(start, holding: queue)
  return job
}

/// Launches a coroutine on any ``LaunchTarget``, as on a queue.
///
/// On the loop of another library, an immediate body runs on the caller's thread until it first suspends, even if that
/// is not the loop's thread. ``WorkerPoolExecutor/shared`` launches on the workers, also inside a coroutine of a queue.
/// - Returns: The handle, which may be released at once.
@inlinable @discardableResult @_disfavoredOverload
public func co_launch<Success: Sendable>(
  on target: some LaunchTarget,
  name: String? = nil,
  stack: StackSize = .standard,
  start: StartMode = .queued,
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
  job.launch(start, holding: destination.anchor)
  return job
}

@usableFromInline
enum Launch {
  /// Returns the scheduler for a launch from here, with a reference for the job's record unless it is immortal.
  @usableFromInline
  static func scheduler(for queue: DispatchQueue?) -> Unmanaged<Scheduler> {
    if let queue { return queue._destination.forLaunch }
    if let job = Carrier.current?.pointee.job {
      let current = job.pointee.scheduler.load(ordering: .relaxed)
      return current._withUnsafeGuaranteedRef { $0.isImmortal } ? current : current.retain()
    }
    return worker.forRecord()
  }

  /// The worker for a launch outside the coroutines of the pool.
  static var worker: Scheduler {
    // In a simulated world, that of its pool. The driver runs handlers and blocking bodies.
    if let simulated = Host.simulated(nil) { return simulated }
    // No thread of a forked child is in a coroutine of its parent, so launches inside a coroutine need no check.
    ForkedChild.use(CCO_USES_THREADS)
    if let ownWorker { return ownWorker }
    return WorkerPool.shared.nextWorker()
  }

  /// The worker in whose drain the caller runs as code of a Task; nil if there is none, or if it is a spare worker.
  ///
  /// Such code launches on the worker that a coroutine would use, because to wake another worker costs two system
  /// calls. The job runs when the Task suspends. Other workers take it if more jobs are ready, and the watchdog makes
  /// another worker take it if the Task computes for long. Handlers are excepted: some wait for the job by
  /// `blockingWait()`, which their own worker refuses.
  private static var ownWorker: Scheduler? {
    guard let pool = WorkerPool.ofCaller, cco_is_inside_task(),
      let scheduler = Carrier.current?.pointee.scheduler?.takeUnretainedValue(),
      scheduler.workerIndex < pool.workers.count
    else {
      return nil
    }
    return scheduler
  }
}

extension Scheduler {
  /// Returns the reference that a job's record holds; none of an immortal scheduler, so that launches share no
  /// reference count.
  func forRecord() -> Unmanaged<Scheduler> {
    isImmortal ? Unmanaged.passUnretained(self) : Unmanaged.passRetained(self)
  }
}

// MARK: - Targets

// The targets on which coroutines are launched, and to which they move.
//
//   target               its scheduler                                                  its anchor
//   DispatchQueue        the queue's; in a simulated world, the world's for the queue   the queue
//   HostedScheduler      the host's                                                     none
//   WorkerPoolExecutor   the caller's worker, else the next worker; in a world, the     none
//                        world's for the pool
//   CoroutineWorker      the worker                                                     none
//
// A forked child that does not have the target's threads ends where it asks for the scheduler (ForkedChild.swift).
//
// `co_launch`, `Scope.launch` and `co_switch` exist twice, for a queue and for any target. Only where the parameter is
// a queue can a call leave it out, or write `nil` or `.main`. The general ones are disfavoured. Otherwise the compiler
// would check a call that names a queue against both, and so the innermost of n nested bodies 2^n times.

/// What coroutines run on: a `DispatchQueue`, the ``HostedScheduler`` of another library's loop, or the workers,
/// ``WorkerPoolExecutor/shared``.
///
/// `co_launch(on:)`, `Scope.launch(on:)` and `co_switch(to:)` take any of them; with CoroutineNIO, event loops too.
/// Only the library's types conform.
public protocol LaunchTarget: Sendable {
  /// The destination of a coroutine that the calling code launches on the target, or that moves to it.
  ///
  /// Any thread; does not suspend.
  var _destination: _LaunchDestination { get }
}

/// The scheduler of a ``LaunchTarget``, and the object that keeps that scheduler in memory.
public struct _LaunchDestination {
  let scheduler: Scheduler
  /// The owner of the scheduler, which is held while a job of the scheduler is live.
  @usableFromInline let anchor: Anchor?

  /// The scheduler for a launch, with a reference for the job's record unless it is immortal.
  @usableFromInline var forLaunch: Unmanaged<Scheduler> { scheduler.forRecord() }
}

extension DispatchQueue: LaunchTarget {
  /// The queue, or what a simulated world has in its place.
  public var _destination: _LaunchDestination {
    ForkedChild.use(CCO_USES_QUEUES)
    return _LaunchDestination(scheduler: QueueHost.scheduler(for: self), anchor: self)
  }
}

extension HostedScheduler: LaunchTarget {
  /// The host's coroutines.
  public var _destination: _LaunchDestination {
    ForkedChild.use(CCO_USES_THREADS)
    return _LaunchDestination(scheduler: scheduler, anchor: nil)
  }
}

extension WorkerPoolExecutor: LaunchTarget {
  /// The worker that the calling coroutine belongs to; elsewhere one without work, if there is one.
  public var _destination: _LaunchDestination {
    if let job = Carrier.current?.pointee.job {
      // The job's scheduler, and not the carrier's: a job of a queue may have been started immediately on a worker.
      let scheduler = job.pointee.scheduler.load(ordering: .relaxed).takeUnretainedValue()
      if let pool = scheduler.readyQueue.pointee.workerPool, pool.takeUnretainedValue() === WorkerPool.shared {
        return _LaunchDestination(scheduler: scheduler, anchor: nil)
      }
    }
    return _LaunchDestination(scheduler: Launch.worker, anchor: nil)
  }
}

// MARK: - Stack sizes

/// The stack size of a coroutine.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// let parser = co_launch(name: "parser", stack: .bytes(4 << 20)) { depth(10_000) }
/// ```
///
/// The size is reserved as address space; memory is committed page by page on first use.
public struct StackSize: Sendable, Hashable, CustomStringConvertible {
  @usableFromInline let byteCount: Int

  @inlinable
  init(byteCount: Int) { self.byteCount = byteCount }

  /// 512 KiB: enough for Foundation, regular expressions, TLS libraries and documents 150 levels deep.
  @inlinable public static var standard: StackSize { StackSize(byteCount: 512 << 10) }
  /// At least this number of bytes, rounded up to a size class: 16, 64, 256 or 512 KiB, 1, 4 or 16 MiB.
  ///
  /// Zero and negative numbers get the smallest class.
  ///
  /// Above the largest class the job fails with ``CoroutineError/stackTooLarge(_:)``.
  @inlinable public static func bytes(_ count: Int) -> StackSize { StackSize(byteCount: max(1, count)) }

  /// This size, or `other` if that is larger.
  package func atLeast(_ other: StackSize) -> StackSize { byteCount < other.byteCount ? other : self }

  /// `standard` or `bytes(4096)`.
  public var description: String { self == .standard ? "standard" : "bytes(\(byteCount))" }
}

// MARK: - One worker

/// A worker of a pool, for a coroutine that must begin there.
package struct CoroutineWorker: LaunchTarget {
  private let scheduler: Scheduler

  /// The workers among which the calling code's work is shared; empty if it does not run on a worker.
  package static var ofCaller: [CoroutineWorker] {
    WorkerPool.ofCaller?.workers.map { CoroutineWorker(scheduler: $0) } ?? []
  }

  package var _destination: _LaunchDestination { _LaunchDestination(scheduler: scheduler, anchor: nil) }
}
