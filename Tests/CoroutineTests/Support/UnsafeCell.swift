/// A counter without any protection, which a serial queue must protect.
///
/// Increments that overlap get lost, and ThreadSanitizer reports them.
final class UnsafeCell: @unchecked Sendable {
  // Sound because every test accesses it only from code of one serial queue, which the test checks.
  private(set) var count = 0

  /// Reads, lets time pass, and writes: an increment that is easily lost.
  @inline(never)
  func increment() {
    let before = count
    for _ in 0..<20 { blackHole(before) }
    count = before + 1
  }

  @inline(never)
  private func blackHole(_: Int) {}
}
