internal import CCoroutine
import Synchronization

extension CoroutineRuntime {
  /// What the runtime has counted, and what there is now.
  ///
  /// Each scheduler counts in words of its own, and this adds them up. Its cost grows with the number of
  /// queues that have coroutines, and with that of live coroutines, whose states it counts.
  ///
  /// Never suspends; any thread, even while all workers and queues are blocked. In a forked child of a process that had
  /// used the runtime, the counts of the parent are the child's as well.
  public static var metrics: Metrics {
    let states = LiveStates.now()
    let stacks = cco_stacks()
    let blocking = MetricSources.blocking
    return Metrics(
      SchedulerRegistry.totals(),
      states,
      stacks: (
        inUse: Int(stacks.live), pooled: Int(stacks.pooled), bytes: Int(stacks.live + stacks.pooled_dirty) * pageSize
      ),
      blocking: blocking,
      descriptors: WatchTable.inUse
    )
  }

  private static var pageSize: Int { 4_096 }

  /// Counters and numbers of one moment.
  ///
  /// The counters never decrease: also not when queues are released, whose schedulers counted.
  public struct Metrics: Sendable, Codable {
    /// The coroutines that have been launched and have not ended: those that are ready, run or wait.
    public var live: Int
    /// The coroutines that could run, and those that have not started.
    public var ready: Int
    /// The coroutines that run on a thread.
    public var running: Int
    /// The coroutines that wait, by the kind of the wait: `receive`, `lock` or `delay`, for example.
    ///
    /// The kinds are those of ``CoroutineRuntime/Snapshot``. A kind for which no coroutine waits is not listed.
    public var waiting: [String: Int]
    /// The coroutines that have been launched; a lazy one counts when it is started.
    public var launched: UInt64
    /// Of the launched coroutines, those that have ended.
    public var ended: UInt64
    /// Of the ended coroutines, those that have ended with an error which is not their cancellation.
    public var failed: UInt64
    /// Of the ended coroutines, those that have ended with their cancellation error, or were cancelled before their
    /// start.
    public var cancelled: UInt64
    /// How often a coroutine was resumed, or started.
    ///
    /// A carrier publishes its switches each time that it reads its clock, so up to 64 of each busy worker or queue may
    /// be missing.
    public var switches: UInt64
    /// The coroutines that a worker has taken from another worker's queue.
    public var steals: UInt64
    /// How often a coroutine or a Task has kept a worker for the threshold of ``CoroutineRuntime/onStall(after:_:)``.
    public var stalls: UInt64
    /// The spare workers that were made because all workers had stalled.
    public var spareWorkers: UInt64
    /// How often a stalled worker has begun to need a spare one while all 64 were taken.
    public var spareShortages: UInt64
    /// The restarts of actors by their supervisors, because of their own end.
    public var restarts: UInt64
    /// The deadlines that have passed (``co_timeout(_:file:line:_:)``), by the place of the call, as `file:line`.
    ///
    /// Those of 64 places; the others are counted as `others`.
    public var timeouts: [String: UInt64]
    /// The parts of Tasks that workers have run: a part is what runs between two suspensions, or of an actor until it
    /// is idle.
    public var taskParts: UInt64
    /// The parts of Tasks that wait for a worker.
    public var taskPartsReady: Int
    /// The time that ready work waits for its thread.
    ///
    /// Of coroutines that were launched or have yielded, and are the first to run after their worker or queue has read
    /// its clock: the time until they run. Of one in eight of the messages that wake an idle worker or queue, as a
    /// launch or a wake-up by another thread: the time until it begins. The time from a wake-up on the same worker or
    /// queue is not measured.
    public var wakeToRun: Histogram
    /// The time for which coroutines run until they wait, yield or end.
    ///
    /// Each worker or queue counts its runs between two reads of its clock, at most 64, by their mean. A long run among
    /// short ones shows in `sum`, and in the buckets as several runs of its share. What happens in between, as
    /// handlers, is part of it. A worker that goes idle leaves most of its last runs out.
    public var runLength: Histogram
    /// The time from the deadline of a timer until it fires; of one timer in 64.
    public var timerLateness: Histogram
    /// The stacks that coroutines and generators use, and those that a scheduler keeps for its next coroutines.
    ///
    /// Far more than there are live coroutines: generators that have begun and are kept, unfinished.
    public var stacksInUse: Int
    /// The stacks in the pool.
    public var stacksPooled: Int
    /// The memory of stacks in bytes at least: a page for each of them, because the pool does not know which of the
    /// others were used.
    public var stackBytes: Int
    /// The threads of ``co_blocking(_:)``.
    public var blockingThreads: Int
    /// The bodies of ``co_blocking(_:)`` that wait for a thread.
    public var blockingWaiting: Int
    /// The sockets and other descriptors that the runtime has opened and not closed.
    public var descriptors: Int

    /// Durations, counted in buckets whose bounds grow logarithmically from 1 µs to 10 s.
    public struct Histogram: Sendable, Codable {
      /// The upper bound of each bucket, which belongs to the bucket, ascending.
      public var bounds: [Duration]
      /// The number of durations in each bucket; the last one, which has no bound, has those above the last bound.
      public var counts: [UInt64]
      /// The sum of the durations.
      public var sum: Duration
    }
  }
}

extension CoroutineRuntime.Metrics {
  init(
    _ sums: [UInt64],
    _ states: LiveStates,
    stacks: (inUse: Int, pooled: Int, bytes: Int),
    blocking: (threads: Int, waiting: Int),
    descriptors: Int
  ) {
    func sum(_ kind: CounterWords.Kind) -> UInt64 { sums[kind.rawValue] }
    func histogram(_ kind: CounterWords.Kind) -> Histogram {
      Histogram(
        bounds: (0..<HistogramScale.bounds).map { .nanoseconds(Int64(HistogramScale.bound($0))) },
        counts: Array(sums[kind.rawValue..<kind.rawValue + HistogramScale.buckets]),
        sum: .nanoseconds(Int64(clamping: sums[kind.rawValue + HistogramScale.buckets]))
      )
    }
    live = states.live
    ready = states.ready
    running = states.running
    waiting = states.waitingByKind
    launched = sum(.launched)
    ended = sum(.ended)
    failed = sum(.failed)
    cancelled = sum(.cancelled)
    switches = sum(.switches)
    steals = sum(.steals)
    stalls = sum(.stalls)
    restarts = sum(.restarts)
    spareWorkers = sum(.spareWorkers)
    spareShortages = sum(.spareShortages)
    timeouts = PassedDeadlines.bySite
    (taskParts, taskPartsReady) = (states.taskParts, states.taskPartsReady)
    wakeToRun = histogram(.wakeToRun)
    runLength = histogram(.runLength)
    timerLateness = histogram(.timerLateness)
    (stacksInUse, stacksPooled, stackBytes) = stacks
    (blockingThreads, blockingWaiting) = blocking
    self.descriptors = descriptors
  }
}

// MARK: - What products count

/// The numbers of parts of the library that Inspect does not name.
///
/// A part that has such numbers sets the function that reads them, once, when it is first used. Until then its numbers
/// are zero.
enum MetricSources {
  /// The threads of co_blocking, and the bodies that wait for one.
  typealias Blocking = @Sendable () -> (threads: Int, waiting: Int)

  private static let lock = ThreadLock()
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var blockingSource: Blocking?

  static var blocking: (threads: Int, waiting: Int) { lock.withLock { blockingSource }?() ?? (0, 0) }

  static func setBlocking(_ source: @escaping Blocking) { lock.withLock { blockingSource = source } }
}

// MARK: - States of the live coroutines

/// The states of the live coroutines, counted in one walk.
///
/// The walk holds a scheduler's live lock for some coroutines at a time, as the list of a dump does (Snapshot.swift).
/// It retains nothing: a job in the list is in memory as long as the lock is held.
struct LiveStates {
  var ready = 0
  var running = 0
  /// The parts of Tasks that workers have run, and those that wait for one.
  private(set) var taskParts: UInt64 = 0
  private(set) var taskPartsReady = 0
  /// The number of waiting coroutines by `WaitKind`.
  private var waiting = [Int](repeating: 0, count: 32)

  var live: Int { waiting.reduce(ready + running, +) }

  /// The waiting coroutines by the kind of their wait.
  var waitingByKind: [String: Int] {
    var named: [String: Int] = [:]
    for (number, count) in waiting.enumerated() where count > 0 {
      named[WaitKind(rawValue: UInt8(number))?.name ?? "unknown"] = count
    }
    return named
  }

  private mutating func add(_ job: JobRef) {
    let word = job.pointee.wait.load(ordering: .relaxed)
    let kind = job.pointee.waitKind.load(ordering: .relaxed)
    if word & 0xFF == 1 {
      waiting[Int(kind & 31)] += 1
    } else if word & 0xFF != 0 || kind == WaitKind.start.rawValue || kind == WaitKind.ready.rawValue {
      ready += 1
    } else {
      running += 1
    }
  }

  /// Counts the live coroutines of the process.
  static func now() -> LiveStates {
    var states = LiveStates()
    LiveJobs.listing.withLock {
      SchedulerRegistry.visitAll { scheduler in
        scheduler.visitLiveJobs { states.add($0) }
        // A part that has begun and not ended is odd.
        states.taskParts &+= scheduler.swiftJobChanges / 2
        states.taskPartsReady += scheduler.swiftJobsWaiting
      }
    }
    return states
  }
}

// MARK: - Settings and the list

extension CoroutineRuntime {
  /// The handler of unobserved failures.
  ///
  /// It receives each failure once, with the name and the launch site of what has failed. The cancellation of the job
  /// itself is no failure. A `CancellationError` in a job that was not cancelled is one: it joined another job that
  /// was, for example. A promise that is rejected with `CancellationError` was cancelled. It is called on whichever
  /// thread detects the failure, and must not block. The default writes one line to standard error.
  public static var unhandledErrorHandler: @Sendable (UnhandledError) -> Void {
    get { UnhandledErrors.handler }
    set { UnhandledErrors.handler = newValue }
  }

  /// The number of coroutines that have been launched and have not ended.
  public static var liveCount: Int {
    var count = 0
    SchedulerRegistry.visitAll { scheduler in count += scheduler.liveLock.withLock { scheduler.liveJobs } }
    return count
  }

  /// Describes every live coroutine, one per line.
  ///
  /// A line contains the number, name, state, source and duration of the wait, queue and launch site:
  ///
  /// ```
  /// #7 "fetch" waiting to receive (Channel<Int> 0x7f20c4002a10, 0 of 8 values buffered) for 30 ms on app.net, launched
  /// at … #8 waiting for a lock (FairMutex 0x7f20c4003b50, held by #9 "writer") for 2 ms on coroutine.shared.1,
  /// launched at … #9 "writer" running for at most 1200 ms on coroutine.shared.0, launched at …
  /// ```
  ///
  /// - The state is one of: not started, ready, running, waiting. The queue is the current one; for the shared
  ///   scheduler it is the worker.
  /// - Two lines with the same address are about the same object. An owner is named if it is a coroutine.
  /// - Names and labels cannot forge a line: control characters, separators of lines and marks of writing direction
  ///   are escaped as in a literal (`\n`, `\u{1B}`), and so are `"` and `\` in a name. A name has at most 200 bytes
  ///   here, and ends with `…` if something is missing. The same holds for each report and error of the library.
  /// - Times are based on the last time at which the coroutine's scheduler read the clock, so they may be too long by
  ///   the longest time that one coroutine ran without a suspension.
  /// - Timers that a scheduler has not reached for a millisecond or more have a line of their own, at the end. It names
  ///   the coroutine that runs there meanwhile.
  /// - So has each circle of coroutines that can never go on, after those; see ``deadlocks()``.
  /// - And each worker for which jobs of Tasks wait, with their number.
  ///
  /// Never suspends; any thread, even while queues are stuck. The last reference to an inspected object may be released
  /// here, so that its `deinit` runs on the calling thread.
  public static func dump() -> String { Dump.text() }
}
