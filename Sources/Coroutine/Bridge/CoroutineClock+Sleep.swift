extension CoroutineClock: _Concurrency.Clock {
  /// Suspends the Task until the clock shows `deadline`, never less.
  ///
  /// In a Task that a coroutine of a world awaits, until the world's time. `tolerance` has no effect: timers are exact.
  /// If the Task is cancelled, it throws `CancellationError` at once. In a coroutine, use ``co_delay(until:)``.
  public func sleep(until deadline: Instant, tolerance: Duration? = nil) async throws {
    try Task.checkCancellation()
    // The Task's cancellation cancels the job, whose only consumer the Task is.
    try await co_launch(name: "sleep", start: .immediate) { try co_delay(until: deadline) }.value
  }
}
