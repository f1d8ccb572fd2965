import Synchronization

extension CoroutineRuntime {
  /// A coroutine, or a Task that runs on the worker pool, that has kept a thread for long, without a suspension: one of
  /// the pool's, or one that runs a queue of the program.
  ///
  /// It computes, or it has called a function that blocks the thread; ``activity-swift.property`` says which. Use
  /// ``co_blocking(_:)`` for blocking calls, and ``co_yield()`` in long computations; from a Task, await a coroutine
  /// that calls co_blocking, or call `Task.yield()`. See ``CoroutineRuntime/onStall(after:_:)``.
  public struct Stall: Sendable, CustomStringConvertible {
    /// The name, the number and the launch site of the coroutine; nil if it was not found among very many, and if
    /// ``isTask`` is true.
    public let coroutine: String?
    /// The place where the coroutine was launched, as `file:line`; nil if ``coroutine`` is.
    public let launchSite: String?
    /// Whether a Task, a part of which the worker ran as a job, has kept the worker; false for a coroutine.
    public let isTask: Bool
    /// How long the coroutine had kept the worker by then, at least.
    ///
    /// This is the processor time that the thread has used, and the time for which it has slept in the kernel. The time
    /// for which it has waited for a processor is no part of it.
    public let duration: Duration
    /// The name of the worker, or of the queue.
    public let worker: String
    /// The kernel's number of the thread, as `top -H` and /proc/self/task show it.
    public let thread: Int32
    /// Where the coroutine was: the return addresses of its frames, the innermost first; see
    /// ``CoroutineRuntime/frames(at:)``.
    ///
    /// The thread is asked for them by a signal, SIGURG, and only the thread of a stall that is reported. Empty where
    /// that is not possible: if the thread does not answer within 20 ms, on a queue 4 ms; in a system call that would
    /// fail because of the signal, such as a sleep or a poll; for a Task; in builds with a sanitizer; if the program
    /// handles SIGURG.
    public let stack: [UInt]
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
    static var threshold: UInt64 { StallReports.threshold.load(ordering: .relaxed) }
    // Sound because it is read and written under `lock`.
    nonisolated(unsafe) private static var handler: (@Sendable (Stall) -> Void)? = { StallLines.write($0) }
    private static let lock = SpinLock()

    static func set(_ threshold: Duration, _ handler: (@Sendable (Stall) -> Void)?) {
      StallReports.threshold.store(UInt64(max(1_000_000, threshold.nanoseconds)), ordering: .relaxed)
      // The old handler is released after the lock is left, because that may run foreign code.
      lock.lock()
      let old = self.handler
      self.handler = handler
      lock.unlock()
      if handler != nil { QueueStalls.watch() }
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

/// The handler while the program has set none: writes one line to standard error about the first stall of each launch
/// site.
private enum StallLines {
  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`.
  nonisolated(unsafe) private static var written: Set<String> = []

  static func write(_ stall: CoroutineRuntime.Stall) {
    let isFirst = lock.withLock { written.insert(stall.launchSite ?? "").inserted }
    if isFirst { writeToStandardError("Coroutine: \(stall)\n") }
  }
}
