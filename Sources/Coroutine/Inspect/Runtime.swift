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
  ///
  /// Never suspends; any thread, even while queues are stuck. The last reference to an inspected object may be released
  /// here, so that its `deinit` runs on the calling thread.
  public static func dump() -> String { Dump.text() }
}
