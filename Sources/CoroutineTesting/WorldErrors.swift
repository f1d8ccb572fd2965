import Coroutine

extension World {
  /// The error of a world in which nothing can ever run again: every coroutine waits, and nothing can wake one.
  public struct DeadlockError: Error, Sendable, CustomStringConvertible {
    /// The coroutines, what each one waits for, and where it was launched.
    public let dump: String
    /// A sentence that says what to do.
    public var description: String { "every coroutine waits, and nothing can wake one:\n\(dump)" }
  }

  /// The error of a world whose body ended while other coroutines still waited.
  public struct LeftRunningError: Error, Sendable, CustomStringConvertible {
    /// The coroutines that are left, what each one waits for, and where it was launched.
    public let dump: String
    /// A sentence that says what to do.
    public var description: String { "the body ended, and left coroutines behind: join or cancel them\n\(dump)" }
  }

  /// The error of a world whose body did not end within the time limit.
  public struct TimeLimitError: Error, Sendable, CustomStringConvertible {
    /// The limit; nil if no time passed during ten million steps.
    public let limit: Duration?
    /// The coroutines, what each one waits for, and where it was launched.
    public let dump: String
    /// A sentence that says what to do.
    public var description: String {
      let reason = limit.map { "the body has not ended after \($0) of the world's time" }
      return
        "\(reason ?? "coroutines run without end, and no time passes: let one of them wait for something")\n\(dump)"
    }
  }

  /// The error of a wait for the real world inside a world: for a descriptor, a Task, a blocked thread.
  public struct RealWaitError: Error, Sendable, CustomStringConvertible {
    /// The coroutine, its launch site, and what it waits for.
    public let wait: String
    /// A sentence that says what to do.
    public var description: String { "\(wait): declare it with World.outside, or simulate it" }
  }

  /// The error of a world's network with a link or a clock of a host that was never added.
  public struct UnknownHostError: Error, Sendable, CustomStringConvertible {
    /// The name.
    public let name: String
    /// A sentence that says what to do.
    public var description: String { "no host is called \(name.asWord): add it with World.Network.host" }
  }
}

extension Exploration {
  /// The error of a body that behaves differently when the same choices are made: something outside decides the order.
  ///
  /// Swift itself leaves open: the order of sets and dictionaries in another process (SWIFT_DETERMINISTIC_HASHING=1
  /// fixes it), `SystemRandomNumberGenerator`, real clocks, and addresses.
  public struct NondeterminismError: Error, Sendable, CustomStringConvertible {
    /// The number of the first choice that differs, from zero on; the number of choices if all of them agree.
    public let step: Int
    /// A sentence that describes what happened.
    public var description: String { "the same choices led to different runs, first at choice \(step)" }
  }

  /// The error of a token that no run has printed.
  public struct TokenError: Error, Sendable, CustomStringConvertible {
    /// The text that should be a token.
    public let token: String
    /// A sentence that says what to do.
    public var description: String { "\"\(token.asName)\" is no token of a run" }
  }
}
