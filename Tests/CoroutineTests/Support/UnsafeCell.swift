/// A count without any protection: what a serial queue must protect by itself.
///
/// Increments that overlap get lost, and ThreadSanitizer reports them.
final class UnsafeCell: @unchecked Sendable {
  // Sound because every test touches it only from code that one serial queue runs; that this holds is what it tests.
  private(set) var count = 0

  /// Reads, lets time pass, writes: an increment that is easily lost.
  @inline(never)
  func increment() {
    let before = count
    for _ in 0..<20 { blackHole(before) }
    count = before + 1
  }

  @inline(never)
  private func blackHole(_: Int) {}
}
