internal import CCoroutine
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
    return ownWorker ?? WorkerPool.shared.nextWorker()
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
