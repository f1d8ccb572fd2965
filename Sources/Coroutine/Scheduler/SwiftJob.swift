import Synchronization

// A job of Swift Concurrency (a part of a Task between two suspensions, or one run of an actor) that waits for a
// scheduler or for the worker pool.
//
// Memory. Swift leaves two words of each job to the executor that the job was enqueued on, from the enqueueing until
// the executor runs the job. The first is the link of the inbox or queue that holds the job, so enqueueing allocates
// nothing. The second says on behalf of which executor the job runs. Both words belong to the holder of the job: the
// enqueueing thread, then the inbox (whose push releases them), then the drain (whose take acquires them). They are not
// read any more once the job runs: its Task may be destroyed before `run` returns.
//
// A queued job is owned by its queue; running it consumes it. Each job runs exactly once, because a message leaves the
// inbox once.

/// The header of a job, up to the words that this library uses.
///
/// The layout is part of the interface between Swift's compiler and its runtime (docs/unsafe.md).
@usableFromInline
struct SwiftJobHeader {
  private let type: UInt
  private let counts: UInt
  var link: UInt
  var executor: UInt

  /// The job was enqueued on the scheduler, as on a task executor.
  static var task: UInt { 0 }
  /// The job was enqueued on the scheduler, as on a serial executor: it is isolated to it.
  static var serial: UInt { 1 }
}

@usableFromInline typealias SwiftJobRef = UnsafeMutablePointer<SwiftJobHeader>

/// The Swift jobs that wait for any worker of a pool, first in, first out.
///
/// No lost wake-up. `append` counts the job, and then reads which workers have no drain. A worker sets its idle bit,
/// ends its drain (Inbox.goIdle), and then reads the count. These accesses are sequentially consistent, so at least one
/// side sees the other: the appending thread starts a drain, or the worker does not go to sleep.
final class SharedSwiftJobs: @unchecked Sendable {
  // Sound because the queue is accessed under the lock, and the count is atomic.
  private let lock = SpinLock()
  @exclusivity(unchecked) private var queue = WorkQueue()
  private let count = Atomic<Int>(0)

  init() {}

  /// Whether a job waits; for a worker that checks again before it goes idle.
  var isWaiting: Bool { count.load(ordering: .relaxed) > 0 }
  /// Whether a job waits; for a worker that has just gone idle.
  var isWaitingAtLast: Bool { count.load(ordering: .sequentiallyConsistent) > 0 }

  /// The first job as a word that the watchdog compares; 0 if there is none.
  var first: UInt { lock.withLock { queue.next } }

  /// Appends a job, and returns the number of jobs that wait now.
  func append(_ job: SwiftJobRef) -> Int {
    lock.lock()
    defer { lock.unlock() }
    queue.append(.swiftJob(job))
    return count.wrappingAdd(1, ordering: .sequentiallyConsistent).newValue
  }

  func popFirst() -> SwiftJobRef? {
    lock.lock()
    defer { lock.unlock() }
    guard case .swiftJob(let job) = queue.popFirst() else { return nil }
    count.wrappingSubtract(1, ordering: .relaxed)
    return job
  }
}
