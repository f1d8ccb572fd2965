import Synchronization

/// A coroutine, or a Task that runs on the worker pool, that has kept one of the pool's threads for long, without a
/// suspension.
///
/// It computes, or it has called a function that blocks the thread. Use ``co_blocking(_:)`` for blocking calls, and
/// ``co_yield()`` in long computations; in a Task a coroutine that does the former, and `Task.yield()`. See
/// ``CoroutineRuntime/onStall(after:_:)``.
public struct Stall: Sendable, CustomStringConvertible {
  /// The name, the number and the launch site of the coroutine; nil if it was not found among very many, and if
  /// ``isTask`` is true.
  public let coroutine: String?
  /// Whether a Task, a part of which the worker ran as a job, has kept the worker; false for a coroutine.
  public let isTask: Bool
  /// How long the coroutine had kept the worker by then, at least.
  public let duration: Duration
  /// The name of the worker.
  public let worker: String

  /// A sentence that says what to do.
  public var description: String {
    let kept = "has kept \(worker) for \(duration.nanoseconds / 1_000_000) ms without a suspension: "
    if isTask {
      return "a Swift Task's job \(kept)await the value of a coroutine that calls co_blocking for blocking calls, "
        + "and let long computations await Task.yield"
    }
    return "\(coroutine ?? "a coroutine") \(kept)"
      + "move blocking calls into co_blocking, and let long computations call co_yield"
  }

  /// The time after which a worker counts as stalled, in ns.
  static var threshold: UInt64 { nanoseconds.load(ordering: .relaxed) }
  private static let nanoseconds = Atomic<UInt64>(100_000_000)
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var handler: (@Sendable (Stall) -> Void)?
  private static let lock = SpinLock()

  static func set(_ threshold: Duration, _ handler: (@Sendable (Stall) -> Void)?) {
    nanoseconds.store(UInt64(max(1_000_000, threshold.nanoseconds)), ordering: .relaxed)
    // The old handler is released after the lock is left, because that may run foreign code.
    lock.lock()
    let old = self.handler
    self.handler = handler
    lock.unlock()
    _ = consume old
  }

  /// Without `withLock`, because a closure that returns a closure allocates, which must not happen under the lock.
  static var currentHandler: (@Sendable (Stall) -> Void)? {
    lock.lock()
    defer { lock.unlock() }
    return handler
  }
}

extension WorkerPool {
  /// Reports the coroutine or the Task that has kept `worker` to the handler; returns whether there was one to report.
  ///
  /// Called by the watchdog only.
  func reportStall(of worker: Scheduler, since start: UInt64, _ now: UInt64) -> Bool {
    guard let handler = Stall.currentHandler else { return false }
    let duration = Duration.nanoseconds(Int64(now - start))
    if worker.runsSwiftJob.load(ordering: .relaxed) {
      handler(Stall(coroutine: nil, isTask: true, duration: duration, worker: worker.label))
      return true
    }
    let (job, isSure) = running(on: worker)
    // Without a job, the worker's thread is waiting for a processor, or the coroutine has just ended.
    if job == nil, isSure { return false }
    handler(Stall(coroutine: job?.summary, isTask: false, duration: duration, worker: worker.label))
    return true
  }

  /// Returns the job that runs on `worker`, and whether the search was complete.
  ///
  /// The search inspects the live jobs of each worker, because a job is in the list of the worker where it was
  /// launched. It is bounded, because launches and ends of jobs wait for the lock.
  private func running(on worker: Scheduler) -> (job: AnyJob?, isSure: Bool) {
    var isSure = true
    for home in workers + spares {
      let found: AnyJob? = home.liveLock.withLock {
        var next = home.firstLive
        var inspected = 0
        while let job = next, inspected < 10_000 {
          if job.seemsRunning, job.pointee.scheduler.load(ordering: .relaxed).toOpaque() == worker.address {
            return job.handle.takeUnretainedValue()
          }
          next = job.pointee.nextLive
          inspected += 1
        }
        isSure = isSure && next == nil
        return nil
      }
      if let found { return (found, true) }
    }
    return (nil, isSure)
  }
}

extension Scheduler {
  fileprivate var address: UnsafeMutableRawPointer { Unmanaged.passUnretained(self).toOpaque() }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether a live job neither waits, nor is ready, nor is still to start, nor runs on its launcher's thread.
  fileprivate var seemsRunning: Bool {
    let kind = pointee.waitKind.load(ordering: .relaxed)
    return pointee.wait.load(ordering: .relaxed) & 0xFF == 0
      && kind != WaitKind.start.rawValue && kind != WaitKind.ready.rawValue
      && pointee.flags.load(ordering: .relaxed) & JobFlags.foreign == 0
  }
}
