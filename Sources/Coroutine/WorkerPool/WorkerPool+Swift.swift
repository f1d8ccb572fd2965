import Synchronization

// The worker pool as a task executor of Swift Concurrency. Its Swift jobs wait in one queue, and every worker takes one
// of them between two of its coroutine jobs.
//
// Wake-ups. If code on a worker enqueues a job, and no other job waits, that worker runs the job, as it runs a single
// ready coroutine. Every other job wakes a worker without a drain. If the first worker computes for long, the watchdog
// wakes another one for the job (Watchdog.swift). SharedSwiftJobs says why no wake-up is lost.

/// The worker pool as a task executor: its jobs run in parallel, so it is no serial executor.
///
/// Enqueueing a job never suspends and allocates nothing; any thread. The code of a job is outside any coroutine.
public final class WorkerPoolExecutor: TaskExecutor {
  /// The executor of the pool that runs coroutines without a queue.
  public static let shared = WorkerPoolExecutor()

  private init() {}

  /// Enqueues a job of Swift Concurrency on the worker pool.
  public func enqueue(_ job: consuming ExecutorJob) {
    ForkedChild.noteUse()
    WorkerPool.shared.enqueue(UnownedJob(job), viaShared: true)
  }
}

extension WorkerPool: TaskExecutor {
  @usableFromInline
  func enqueue(_ job: consuming ExecutorJob) { enqueue(UnownedJob(job), viaShared: false) }

  fileprivate func enqueue(_ job: UnownedJob, viaShared: Bool) {
    let job = SwiftJobRef(job)
    job.pointee.executor = viaShared ? 1 : 0
    if swiftJobs.append(job) > 1 || WorkerPool.ofCaller !== self { wakeForSwiftJobs() }
  }

  /// Wakes a worker that has no drain.
  private func wakeForSwiftJobs() {
    if idle.load(ordering: .sequentiallyConsistent) != 0 { return wakeOne() }
    if isAnyBackingOff { endBackoffs(ofAll: false) }
  }

  /// Runs the next Swift job, and returns whether there was one.
  ///
  /// Called by a worker's drain.
  func runSwiftJob() -> Bool {
    guard swiftJobs.isWaiting, let job = swiftJobs.popFirst() else { return false }
    let executor =
      job.pointee.executor == 0 ? asUnownedTaskExecutor() : WorkerPoolExecutor.shared.asUnownedTaskExecutor()
    // The job runs on the driver's stack, so afterwards this is the same worker and the same thread.
    let worker = Carrier.current?.pointee.scheduler?._withUnsafeGuaranteedRef { $0.worker } ?? nil
    worker?._withUnsafeGuaranteedRef { $0.noteSwiftJob() }
    UnownedJob(job).runSynchronously(on: executor)
    worker?._withUnsafeGuaranteedRef { $0.noteSwiftJob() }
    return true
  }

  /// Wakes a worker if the same Swift job has been the first since the last inspection; a spare one if every worker is
  /// busy, and one has stalled.
  ///
  /// Called by the watchdog.
  func rescueSwiftJobs(_ anyStalled: Bool) {
    let first = swiftJobs.isWaiting ? swiftJobs.first : 0
    defer { lastSwiftJob = first }
    guard first != 0, first == lastSwiftJob else { return }
    if withoutDrain() != 0 || !anyStalled { return wakeForSwiftJobs() }
    // Its drain takes the pool's Swift jobs as that of every worker does.
    if let spare = spareWorker(), spare.inbox.wakeUp() { spare.submit() }
  }
}

extension Scheduler {
  /// Whether the drain runs a Swift job of the pool.
  var runsSwiftJob: Bool { swiftJobChanges & 1 != 0 }

  /// How often a Swift job of the pool has begun or ended here; 0 if this is no worker.
  var swiftJobChanges: UInt64 {
    worker?._withUnsafeGuaranteedRef { $0.swiftJobChanges.load(ordering: .relaxed) } ?? 0
  }
}
