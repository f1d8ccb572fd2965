import Synchronization

extension CoroutineRuntime {
  /// A coroutine, or a Task that runs on the worker pool, that has kept one of the pool's threads for long, without a
  /// suspension.
  ///
  /// It computes, or it has called a function that blocks the thread; ``activity-swift.property`` says which. Use
  /// ``co_blocking(_:)`` for blocking calls, and ``co_yield()`` in long computations; in a Task a coroutine that does
  /// the former, and `Task.yield()`. See ``CoroutineRuntime/onStall(after:_:)``.
  public struct Stall: Sendable, CustomStringConvertible {
    /// The name, the number and the launch site of the coroutine; nil if it was not found among very many, and if
    /// ``isTask`` is true.
    public let coroutine: String?
    /// Whether a Task, a part of which the worker ran as a job, has kept the worker; false for a coroutine.
    public let isTask: Bool
    /// How long the coroutine had kept the worker by then, at least.
    ///
    /// This is the processor time that the thread has used, and the time for which it has slept in the kernel. The time
    /// for which it has waited for a processor is no part of it.
    public let duration: Duration
    /// The name of the worker.
    public let worker: String
    /// What the thread has done for most of that time.
    public let activity: Activity

    /// What a thread does that a coroutine keeps.
    public struct Activity: Sendable, Hashable, CustomStringConvertible {
      enum Kind: Sendable, Hashable {
        case computing
        case systemCall(String)
        case asleep
      }

      let kind: Kind

      /// It uses a processor.
      public static var computing: Activity { Activity(kind: .computing) }
      /// It sleeps in the system call of this name, `read` for example.
      ///
      /// A lock that blocks threads sleeps in `futex`, and so does a `static let` whose initial value another thread
      /// computes.
      public static func systemCall(_ name: String) -> Activity { Activity(kind: .systemCall(name)) }
      /// It sleeps in the kernel: for a page of memory, or in a call that the kernel does not name to this process.
      public static var asleep: Activity { Activity(kind: .asleep) }

      /// The name of the system call in which the thread sleeps; nil for other activities.
      public var systemCall: String? {
        if case .systemCall(let name) = kind { name } else { nil }
      }

      /// `computing`, `in read(2)`, or `asleep in the kernel`.
      public var description: String {
        switch kind {
        case .computing: "computing"
        case .systemCall(let name): "in \(name)(2)"
        case .asleep: "asleep in the kernel"
        }
      }
    }

    /// A sentence that says what to do.
    public var description: String {
      let milliseconds = duration.nanoseconds / 1_000_000
      let subject = isTask ? "a Swift Task's job" : coroutine ?? "a coroutine"
      return "\(subject) has kept \(worker) for \(milliseconds) ms without a suspension, \(activity): \(advice)"
    }

    private var advice: String {
      let blocking =
        isTask
        ? "await the value of a coroutine that calls co_blocking for blocking calls"
        : "move blocking calls into co_blocking"
      return switch activity.kind {
      case .computing: "let long computations \(isTask ? "await Task.yield" : "call co_yield"), or \(blocking)"
      case .systemCall("futex"):
        "a lock that blocks threads, perhaps a `static let`; use the locks of this library, Once in place of a `static let` "
          + "whose initial value waits, or \(blocking)"
      case .systemCall, .asleep: blocking
      }
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
}

extension WorkerPool {
  /// The coroutine, or the job of a Task, that seems to be stalling a worker.
  struct Suspect {
    /// Its number; 0 if it was not found, `max` for a Task.
    let id: UInt64
    /// A number that each wait and each yield changes (`stallMark`); for a Task `Scheduler.swiftJobChanges`.
    let mark: UInt64
    /// The time that the worker had been kept when it was found, in ns.
    let total: UInt64
  }

  /// Reports the coroutine or the Task that has kept `worker` to the handler; returns whether there was one to report.
  ///
  /// A worker reads its clock only after some jobs, so `use` may be the time of several. A job is reported only if it
  /// was found there a threshold ago, and has neither waited nor yielded since. Called by the watchdog only, after each
  /// sample of the thread.
  func reportStall(of worker: Scheduler, _ use: ThreadUse, _ suspect: inout Suspect?) -> Bool {
    let threshold = CoroutineRuntime.Stall.threshold
    // The search takes the locks of all workers, so it is made only for a handler and a likely stall.
    guard use.total > threshold / 8, let handler = CoroutineRuntime.Stall.currentHandler else { return false }
    let changes = worker.swiftJobChanges
    let isTask = changes & 1 != 0
    let (job, isSure) = isTask ? (nil, false) : running(on: worker)
    // Without a job, the worker's thread is waiting for a processor, or the coroutine has just ended.
    if job == nil, isSure { return false }
    let id = isTask ? .max : job?.id ?? 0
    let mark = isTask ? changes : job?.record.stallMark ?? 0
    guard let found = suspect, found.id == id, found.mark == mark else {
      suspect = Suspect(id: id, mark: mark, total: use.total)
      return false
    }
    let kept = use.total - found.total
    guard kept > threshold, let activity = use.activity else { return false }
    let duration = Duration.nanoseconds(Int64(kept))
    let name = isTask ? nil : job?.summary
    handler(
      CoroutineRuntime.Stall(
        coroutine: name,
        isTask: isTask,
        duration: duration,
        worker: worker.label,
        activity: activity
      )
    )
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
  /// The sum of the word `wait`, which each wait changes, and the time of the last wait or yield (`Carrier.giveWay`).
  ///
  /// Until the worker reads its clock again, the time changes by less than the 256 that each wait adds to the word. So
  /// each wait and each yield changes the sum. A later yield can repeat the sum of a wait, if it uses up the switches
  /// that are left: then the worker reads its clock, and the search for a stall begins anew.
  fileprivate var stallMark: UInt64 {
    pointee.wait.load(ordering: .relaxed) &+ pointee.waitingSince.load(ordering: .relaxed)
  }

  /// Whether a live job neither waits, nor is ready, nor is still to start, nor runs on its launcher's thread.
  fileprivate var seemsRunning: Bool {
    let kind = pointee.waitKind.load(ordering: .relaxed)
    return pointee.wait.load(ordering: .relaxed) & 0xFF == 0
      && kind != WaitKind.start.rawValue && kind != WaitKind.ready.rawValue
      && !hold.isForeign
  }
}
