extension CoroutineRuntime {
  /// Calls `handler` once for each time that a coroutine, or a Task that runs there (``WorkerPoolExecutor``), keeps a
  /// thread of the worker pool for `threshold` or longer, without a wait or a yield; or a coroutine a queue of the
  /// program.
  ///
  /// The time counts for which the thread uses a processor, or sleeps in a system call or elsewhere in the kernel;
  /// ``CoroutineRuntime/Stall/activity-swift.property`` says which. The time for which it waits for a processor does
  /// not count, so a machine with more work than processors makes no stalls.
  ///
  /// The work that waits behind it is taken over by another worker, or by a spare one if all are busy, at
  /// most 64. That happens without a handler as well. On a queue of the program nothing is taken over. Queues are
  /// watched from the first call with a handler on, by a thread that looks every 10 ms while coroutines run there;
  /// blocks of their own are not watched.
  ///
  /// Until the first call, a handler of the library's writes one line to standard error about the first stall of each
  /// launch site, after 100 ms. With nil, none is called.
  ///
  /// Never suspends; any thread, at any time; the last call counts for the whole process. `handler` is called on a
  /// thread of the runtime, and must not block. The watch is coarse: a stall is noticed up to 50 ms late, or by a
  /// quarter of the threshold more if that is long. Where /proc is not mounted, the kernel does not say whether a
  /// thread sleeps: then only a thread whose processor time stands still for ten times the threshold counts as asleep.
  ///
  /// - Parameters:
  ///   - threshold: The time; at least one millisecond.
  ///   - handler: Receives the stall; nil for none.
  public static func onStall(
    after threshold: Duration = .milliseconds(100),
    _ handler: (@Sendable (Stall) -> Void)?
  ) {
    Stall.set(threshold, handler)
  }
}
