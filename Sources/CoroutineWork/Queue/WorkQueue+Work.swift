#if Postgres
import Coroutine

extension WorkQueue {
  /// Claims jobs and runs `handle` for each in a coroutine of its own, `concurrency` at a time, until cancelled.
  ///
  /// Suspends. It claims as many jobs as it has room for, in one statement, and none ahead. Once asked to stop
  /// (`co_isStopping`) it claims no more, lets handlers finish, and returns; once cancelled, it cancels them. Jobs of
  /// cancelled handlers become available again at once, and the attempt does not count.
  ///
  /// A handler that returns without `finish` has finished with no effects. One that throws has failed its attempt. If
  /// its lease is lost, its coroutine is cancelled; what it then tries to commit by `finish` is refused.
  ///
  /// It survives losses: it tries again from 50 ms up to 5 s later, and tells `onEvent`.
  /// - Throws: Only the cancellation error, and `WorkError.newerTables`.
  @available(*, noasync, message: "await the `value` of a coroutine that does this")
  public func work(
    concurrency: Int = 16,
    onEvent: @escaping @Sendable (WorkEvent) -> Void = { _ in },
    _ handle: @escaping @Sendable (WorkJob<Payload>) throws -> Void
  ) throws {
    try Worker(core, concurrency: concurrency, onEvent: onEvent, handle).run()
  }
}
#endif
