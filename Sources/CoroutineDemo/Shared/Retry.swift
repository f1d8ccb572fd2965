#if Demo
import Coroutine

/// Tries again, after pauses, what may succeed later.
///
/// Only for what can be repeated: a failed request may have been carried out, and is carried out again.
struct Retry: Sendable {
  /// How often it is tried in all.
  var attempts = 5
  /// How long to wait after each failure.
  var pauses = Backoff.exponential(from: .milliseconds(100), limit: .seconds(5))

  /// Calls `body` until it returns, the attempts are used up, or its failure is not temporary; throws the last failure.
  ///
  /// Suspends between the attempts. If the coroutine is cancelled, or a deadline around this has passed, it ends at
  /// once. `report` gets the number of each failed attempt that is followed by another one.
  func callAsFunction<Output>(
    while isTemporary: (any Error) -> Bool,
    report: (Int, any Error) -> Void = { _, _ in },
    _ body: () throws -> Output
  ) throws -> Output {
    var failed = 0
    while true {
      do {
        return try body()
      } catch {
        failed += 1
        // A cancellation of the coroutine ends it, also if the body threw another error because of it.
        try co_checkCancelled()
        guard failed < attempts, isTemporary(error) else { throw error }
        report(failed, error)
        try co_delay(pauses.pause(after: failed))
      }
    }
  }
}
#endif
