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
    let end = ContinuousClock.now + duration
    while true {
      let (seconds, attoseconds) = ContinuousClock.now.duration(to: end).components
      guard seconds >= 0, attoseconds >= 0 else { return }
      // Not nanosleep: with some sets of imports the compiler of Swift 6.3.1 finds no initializer of timespec.
      poll(nil, 0, Int32(clamping: seconds * 1_000 + attoseconds / 1_000_000_000_000_000 + 1))
    }
  }
}
