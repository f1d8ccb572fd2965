extension CoroutineRuntime {
  /// The number of threads that run coroutines of the shared scheduler.
  ///
  /// That is the number of processors that the process may use, by its affinity and the quotas of its control groups;
  /// or what the environment variable `COROUTINE_WORKERS` says, a number from 1 to 64. It does not change. Any thread;
  /// starts no thread.
  public static var workerCount: Int { Processors.chosen }
}
