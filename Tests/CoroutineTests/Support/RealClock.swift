import Glibc
import Testing

// Tests of the real clock carry the tag `realClock`, each with a sentence that says why no world can stand in for it.
// They say that something has happened, or that it was not early: never that it came soon. A loaded machine makes them
// slow, and does not make them fail.

extension Tag {
  /// Real time passes in the test.
  @Tag static var realClock: Self
}

/// What tests of the real clock do with it.
enum RealClock {
  /// Blocks the calling thread for at least `duration`, as code that does not know of coroutines would.
  static func block(for duration: Duration) {
    let (seconds, attoseconds) = duration.components
    var (whole, left) = (timespec(tv_sec: Int(seconds), tv_nsec: Int(attoseconds / 1_000_000_000)), timespec())
    while nanosleep(&whole, &left) != 0 && errno == EINTR { whole = left }
  }
}
