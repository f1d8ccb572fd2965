internal import CCoroutine

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
    public var stacksInUse: Int
    /// The stacks in the pool.
    public var stacksPooled: Int
    /// The memory of stacks in bytes, as far as the pool knows: a page for each stack that is not empty.
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
    spareWorkers = sum(.spareWorkers)
    wakeToRun = histogram(.wakeToRun)
    runLength = histogram(.runLength)
    timerLateness = histogram(.timerLateness)
    (stacksInUse, stacksPooled, stackBytes) = stacks
    (blockingThreads, blockingWaiting) = blocking
    self.descriptors = descriptors
  }
}
