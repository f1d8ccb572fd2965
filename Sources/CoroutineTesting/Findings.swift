/// Nothing in the world can ever run again: every coroutine waits, and nothing can wake one.
public struct Deadlock: Error, Sendable, CustomStringConvertible {
  /// The coroutines, what each one waits for, and where it was launched.
  public let dump: String
  /// A sentence that says what to do.
  public var description: String { "every coroutine waits, and nothing can wake one:\n\(dump)" }
}

/// The body ended, and coroutines were left that wait.
public struct LeftRunning: Error, Sendable, CustomStringConvertible {
  /// The coroutines that are left, what each one waits for, and where it was launched.
  public let dump: String
  /// A sentence that says what to do.
  public var description: String { "the body ended, and left coroutines behind: join or cancel them\n\(dump)" }
}

/// Something in a world waited for the real world: a descriptor, a Task, a blocked thread.
public struct RealWait: Error, Sendable, CustomStringConvertible {
  /// The coroutine, its launch site, and what it waits for.
  public let place: String
  /// A sentence that says what to do.
  public var description: String { "\(place): declare it with World.outside, or simulate it" }
}

/// The same choices led elsewhere: something outside of the world decides the order.
///
/// Swift itself leaves open: the order of sets and dictionaries in another process (SWIFT_DETERMINISTIC_HASHING=1 fixes
/// it), `SystemRandomNumberGenerator`, real clocks, and addresses.
public struct Nondeterminism: Error, Sendable, CustomStringConvertible {
  /// The number of the first choice that differs, from zero on.
  public let step: Int
  /// A sentence that says what to do.
  public var description: String { "the same choices led elsewhere, first at choice \(step)" }
}

/// A token that no run has printed.
public struct UnreadableToken: Error, Sendable, CustomStringConvertible {
  /// The text.
  public let token: String
  /// A sentence that says what to do.
  public var description: String { "\"\(token)\" is no token of a run" }
}
