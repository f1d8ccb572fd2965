#if Postgres
import Coroutine

/// The waits for the socket of one connection; libpq owns the socket.
struct Watch: Sendable {
  let number: Int32

  init(_ number: Int32) { self.number = number }

  /// Suspends until there may be input.
  ///
  /// The caller has just seen that there was none.
  func untilReadable() throws { try co_untilReadable(number, assumingNotReady: true) }

  /// Suspends until there may be room for output.
  ///
  /// The caller has just seen that there was none.
  func untilWritable() throws { try co_untilWritable(number, assumingNotReady: true) }

  /// Ends the watch; nobody waits by then.
  func end() {}
}
#endif
