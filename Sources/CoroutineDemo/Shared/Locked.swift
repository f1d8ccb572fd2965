#if Demo
import Foundation

/// A value that several threads share, reached only with its lock held.
///
/// Invariant: `value` is read and written by `withLock` alone. No foreign code runs inside: callers take what they need
/// out and act on it after the lock is left.
// Sound because every access to `value` happens in `withLock`, which holds `lock`.
final class Locked<Value: Sendable>: @unchecked Sendable {
  private let lock = NSLock()
  private var value: Value

  init(_ value: Value) {
    self.value = value
  }

  func withLock<Output>(_ body: (inout Value) throws -> Output) rethrows -> Output {
    lock.lock()
    defer { lock.unlock() }
    return try body(&value)
  }
}
#endif
