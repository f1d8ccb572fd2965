public import Coroutine

extension World {
  /// The error of a world in which nothing can run again: every coroutine waits, and no coroutine, timer or handler of
  /// the world can wake one.
  public struct DeadlockError: Error, Sendable, CustomStringConvertible {
    /// The coroutines, what each one waits for, and where it was launched.
    public let dump: String
    var waiting = "coroutine"
    /// A sentence that says what to do.
    public var description: String { "every \(waiting) waits, and nothing in the world can wake one:\n\(dump)" }
  }

  /// The error of a world whose body ended while other coroutines still waited.
  public struct LeftRunningError: Error, Sendable, CustomStringConvertible {
    /// The coroutines that are left, what each one waits for, and where it was launched.
    public let dump: String
    var sentence = "the body ended, and left coroutines behind: join or cancel them"
    /// A sentence that says what to do.
    public var description: String { "\(sentence)\n\(dump)" }
  }

  /// The error of a world whose body did not end within the time limit.
  public struct TimeLimitError: Error, Sendable, CustomStringConvertible {
    /// The limit; nil if there was none, and no time passed during ten million steps, or it passed ten million times.
    public let limit: Duration?
    /// The coroutines, what each one waits for, and where it was launched.
    public let dump: String
    /// Whether time passed again and again, and had no limit.
    var timePassed = false
    /// A sentence that says what to do.
    public var description: String {
      if let limit { return "the body has not ended after \(limit) of the world's time\n\(dump)" }
      let reason =
        timePassed
        ? "the body has not ended, and time has passed ten million times: it may wait for what nothing resumes, beside "
          + "a loop that sleeps. If it needs more, set a timeLimit"
        : "coroutines or Tasks run without end, and no time passes: let one of them wait for something"
      return "\(reason)\n\(dump)"
    }
  }

  /// The error of a wait for the real world inside a world: for a descriptor, a blocked thread, a callback of a thread
  /// or a queue, a Task, a job that runs outside.
  ///
  /// Whether the thread is faster than the world makes no difference: the wait must be declared.
  public struct RealWaitError: Error, Sendable, CustomStringConvertible {
    /// The coroutine, its launch site, and what it waits for.
    public let wait: String
    var advice = "declare it with World.outside, or simulate it"
    /// A sentence that says what to do.
    public var description: String { "\(wait): \(advice)" }
  }

  /// The error of async code that no world can run: of one inside of another one, or where Swift's executors cannot be
  /// replaced.
  public struct AsyncWorldError: Error, Sendable, CustomStringConvertible {
    /// Why, and what to do.
    public let reason: String
    /// A sentence that says what to do.
    public var description: String { "async code cannot run in a world here: \(reason)" }
  }

  /// The error of a world in which a coroutine, an actor or a promise has failed, and nothing has observed it.
  ///
  /// In production, `CoroutineRuntime.unhandledErrorHandler` receives such a failure.
  public struct UnhandledError: Error, Sendable, CustomStringConvertible {
    /// The failure, and what has failed.
    public let unhandled: CoroutineRuntime.UnhandledError
    /// A sentence that says what to do.
    public var description: String { "\(unhandled): observe it, or allow it with World.allowUnhandledErrors" }
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
  /// Swift itself leaves open: the order of sets and dictionaries, `SystemRandomNumberGenerator`, real clocks, and
  /// addresses. Two dictionaries with the same contents differ in their order also within one process, so go through
  /// them in a sorted order. SWIFT_DETERMINISTIC_HASHING=1 fixes the order too, except where keys are hashed by their
  /// addresses (`ObjectIdentifier`). An error that the body throws in such a run is not hidden by this one.
  public struct NondeterminismError: Error, Sendable, CustomStringConvertible {
    /// The number of the first choice that differs, from zero on; the number of choices if all of them agree.
    public let step: Int
    let difference: String
    /// A sentence that names the choice and the coroutine, and says what to do.
    public var description: String {
      "the same choices led to different runs, first at choice \(step): \(difference). Something outside of the world "
        + "decides. It is often the order of a dictionary or a set, which differs within one process too: go through it "
        + "in a sorted order, or set SWIFT_DETERMINISTIC_HASHING=1. It may be a random number, a real clock, or an address"
    }
  }

  /// The error of a token that no run of this program prints.
  public struct TokenError: Error, Sendable, CustomStringConvertible {
    /// The text that should be a token.
    public let token: String
    /// The number of the first choice that the program does not offer, from zero on; nil if the text is no token.
    public let step: Int?
    /// A sentence that says what to do.
    public var description: String {
      guard let step else { return "\"\(token.asName)\" is no token of a run" }
      return "the token \(token.asName) does not fit this program any more: diverged at choice \(step); what follows "
        + "has run in order. Explore again, which prints another token if the program still fails"
    }
  }
}
