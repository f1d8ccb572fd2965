/// The runtime as a whole.
public enum CoroutineRuntime {
  /// Gets each failure that nobody will see, once, with a description of the job that it comes from: its name, number
  /// and launch place.
  ///
  /// Called on whatever thread finds out; must not block. The default writes one line to standard error.
  public static var onUnhandledError: @Sendable (any Error, _ job: String) -> Void {
    get { UnhandledErrors.handler }
    set { UnhandledErrors.handler = newValue }
  }

  /// How many coroutines have been launched and have not ended.
  public static var liveCount: Int {
    var count = 0
    SchedulerRegistry.visitAll { scheduler in count += scheduler.liveLock.withLock { scheduler.liveJobs } }
    return count
  }

  /// Describes every live coroutine, one a line: number, name, state, what it waits for and for how long, queue, launch place.
  ///
  /// ```
  /// #7 "fetch" waiting to receive (Channel<Int> 0x7f20c4002a10, 0 of 8 values buffered) for 30 ms on app.net, launched at …
  /// #8 waiting for a lock (FairMutex 0x7f20c4003b50, held by #9 "writer") for 2 ms on coroutine.shared.1, launched at …
  /// #9 "writer" running for at most 1200 ms on coroutine.shared.0, launched at …
  /// ```
  ///
  /// - A state is one of: not started, ready, running, waiting. The queue is the one that it is on now; of the shared scheduler,
  ///   the worker.
  /// - Two lines with the same address are about the same object. An owner is named when it is a coroutine.
  /// - Times come from the last time at which the coroutine's scheduler read the clock, so they may be too long by as long as
  ///   one coroutine ran without a suspension.
  /// - Timers that a scheduler has not got to for a millisecond or more have a line of their own, at the end.
  ///
  /// Never suspends; any thread, also while queues are stuck. An object that is waited for may be released here last, so that
  /// its `deinit` runs on the calling thread.
  public static func dump() -> String { Dump.text() }
}
