extension CoroutineRuntime {
  /// Returns every live coroutine at about this moment, as values.
  ///
  /// Never suspends; any thread, even while all queues and workers are stuck, and in a forked child. It stops nothing
  /// and takes no lock for longer than it takes to retain 32 coroutines. The last reference to an inspected object may
  /// be released here, so that its `deinit` runs on the calling thread. Takes time and memory in proportion to the
  /// number of coroutines.
  ///
  /// - Parameter stacks: Whether to read where each coroutine is: the return addresses of its frames.
  public static func snapshot(stacks: Bool = false) -> Snapshot { snapshot(stacks: stacks, of: nil) }

  /// A snapshot of the coroutines of `only`, or of all.
  static func snapshot(stacks: Bool, of only: [Scheduler]?) -> Snapshot {
    var late: [UInt64] = []
    let jobs = LiveJobs.list(of: only) { if let lateness = $0.lateness { late.append(lateness) } }
    var reader = SnapshotReader(JobNames(jobs))
    var coroutines: [Snapshot.Coroutine] = []
    coroutines.reserveCapacity(jobs.count)
    for job in jobs { coroutines.append(reader.coroutine(job)) }
    return Snapshot(coroutines: coroutines, lateTimers: late.sorted(by: >).map { .nanoseconds(Int64(clamping: $0)) })
  }
}
