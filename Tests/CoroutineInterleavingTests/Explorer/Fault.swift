/// An operation that virtual threads share, as a schedule names it.
enum Operation {
  case load, store, exchange, compareExchange, bitwiseOr, bitwiseAnd, add, subtract, lock
  /// The second half of an operation that a fault has torn.
  case tornStore
}

/// One step or check that is taken out of a shipped algorithm, to show that the explorer notices.
///
/// A fault names the function whose operations it changes, as `#function` writes it.
enum Fault {
  /// A read-modify-write becomes a read and a later write.
  case torn(String)
  /// A compare-and-swap compares only the bits of the mask; 0: it always succeeds.
  case compares(mask: UInt, in: String)
  /// An operation is left out, and answers as if it had been performed and had succeeded.
  case skipped(String)
  /// Loads answer this value.
  case reads(UInt, in: String)
  /// A lock is taken without waiting for its holder.
  case unlocked(String)

  func tears(_ function: StaticString) -> Bool {
    if case .torn(let name) = self { name == function.description } else { false }
  }

  func skips(_ function: StaticString) -> Bool {
    if case .skipped(let name) = self { name == function.description } else { false }
  }

  func answers<Value>(in function: StaticString) -> Value? {
    guard case .reads(let word, let name) = self, name == function.description else { return nil }
    return withUnsafeBytes(of: word) { $0.load(as: Value.self) }
  }

  func ignoresLock(_ function: StaticString) -> Bool {
    if case .unlocked(let name) = self { name == function.description } else { false }
  }

  func forcesEquality<Value>(_ one: Value, _ other: Value, in function: StaticString) -> Bool {
    guard case .compares(let mask, let name) = self, name == function.description else { return false }
    return bits(of: one) & mask == bits(of: other) & mask
  }
}
