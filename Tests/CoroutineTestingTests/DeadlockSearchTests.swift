import Glibc
import Testing

/// The search for deadlocks, in random programs under virtual time: no circle is false, and none is missed.
///
/// CO_DEADLOCK_PROGRAMS is their number (`make soak-deadlocks`), CO_SEED the seed of the first one.
@Suite("Deadlocks in random programs", .timeLimit(.minutes(60)))
struct DeadlockSearchTests {
  private static func number(_ name: String) -> UInt64? { getenv(name).flatMap { UInt64(String(cString: $0)) } }

  @Test func `a reported coroutine never goes on unless it is cancelled, and each circle is reported`() async throws {
    try await onOwnThread {
      let first = Self.number("CO_SEED") ?? UInt64.random(in: 0...UInt64.max / 2)
      let count = Self.number("CO_DEADLOCK_PROGRAMS") ?? (isSanitized ? 300 : 1500)
      var (circles, failures) = (0, 0)
      for seed in first..<first + count {
        let program = DeadlockProgram.run(seed: seed)
        circles += program.circleCount
        guard let failure = program.failure else { continue }
        failures += 1
        Issue.record("CO_SEED=\(seed): \(failure)")
        if failures == 5 { break }
      }
      // Otherwise the programs show nothing.
      #expect(circles > Int(count / 50), "\(circles) circles in \(count) programs")
    }
  }
}
