internal import CCoroutine
public import Dispatch
import Synchronization

/// How much stack a coroutine may use.
///
/// Address space is reserved; memory is committed page by page as it is touched.
public enum StackSize: Sendable, Hashable {
  /// 512 KiB, enough for Foundation, regular expressions, TLS libraries and documents 200 levels deep.
  case standard
  /// At least so many bytes, rounded up to a size class: 16, 64, 256 or 512 KiB, 1, 4 or 16 MiB. Beyond the largest the
  /// job fails with ``CoroutineError/stackTooLarge(_:)``.
  case bytes(Int)

  @usableFromInline var byteCount: Int {
    switch self {
    case .standard: 512 << 10
    case .bytes(let count): max(1, count)
    }
  }
}

/// When a launched body starts to run.
public enum StartMode: Sendable {
  /// On its queue, never before `co_launch` returns.
  case queued
  /// At once, on the caller's turn and thread, until it first suspends; from then on on its queue.
  case immediate
  /// At the first join, await or wait; a lazy job that is dropped before that never runs.
  case lazy
}

/// Starts `body` on its own guarded stack, on the scheduler of `queue`.
///
/// - Parameters:
///   - queue: Where it runs. `nil`: the queue of the current coroutine; outside of any coroutine the shared parallel
///     scheduler. A concurrent queue counts as one serial worker of it.
///   - name: For dumps, reports and last words.
///   - stack: How much stack it may use.
///   - start: When it starts.
///   - file: The launch place, for dumps, reports and last words.
///   - line: The line of the launch place.
///   - body: What it does. A failure that nobody joins goes to ``CoroutineRuntime/onUnhandledError``.
/// - Returns: The handle, which may be dropped.
///
/// Does not suspend, except that an immediate body runs until it first suspends; may be called anywhere. The bindings of
/// ``CoroutineLocal`` in force here are in force in the body. In a forked child the job fails with
/// ``CoroutineError/afterFork`` before this returns.
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
  job.launch(start, on: queue)
  return job
}

@usableFromInline
enum Launch {
  /// The scheduler for a launch here and now, with a reference for the job's record unless it is immortal.
  @usableFromInline
  static func scheduler(for queue: DispatchQueue?) -> Unmanaged<Scheduler> {
    if let queue { return (ForkedChild.isHere ? ForkedChild.scheduler : QueueHost.scheduler(for: queue)).forRecord() }
    if let job = Carrier.current?.pointee.job {
      let current = job.pointee.scheduler.load(ordering: .relaxed)
      return current._withUnsafeGuaranteedRef { $0.isImmortal } ? current : current.retain()
    }
    // No thread of a forked child is in a coroutine, so a launch inside of one need not ask.
    return (ForkedChild.isHere ? ForkedChild.scheduler : WorkerPool.shared.nextWorker()).forRecord()
  }
}

extension Scheduler {
  /// What a job's record holds: nothing of an immortal scheduler, so that launching there shares no reference count.
  func forRecord() -> Unmanaged<Scheduler> {
    isImmortal ? Unmanaged.passUnretained(self) : Unmanaged.passRetained(self)
  }
}
