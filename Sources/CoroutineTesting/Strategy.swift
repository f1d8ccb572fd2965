import Coroutine

extension Exploration {
  /// Chooses the next step of a run among all coroutines that can run.
  public struct Strategy: Sendable, Hashable, CustomStringConvertible {
    enum Kind: Sendable, Hashable {
      case inOrder
      case random(seeds: Int, from: UInt64)
      case priorities(depth: Int, runs: Int)
      case exhaustive(preemptions: Int, most: Int)
      case replay(String)
    }

    let kind: Kind

    /// First in, first out: one run.
    public static var inOrder: Strategy { Strategy(kind: .inOrder) }
    /// Any order with equal probability, once for each of `seeds` seeds, beginning with `from`.
    ///
    /// Fewer than one seed trap: an exploration without a run would find nothing.
    public static func random(seeds: Int = 100, from: UInt64 = 0) -> Strategy {
      if seeds < 1 { misuse("A strategy with \(seeds) seeds runs nothing: give it 1 or more.") }
      return Strategy(kind: .random(seeds: seeds, from: from))
    }
    /// Probabilistic concurrency testing: each coroutine has a random priority, and at `depth - 1` random steps the
    /// running one gets the lowest.
    ///
    /// Of n coroutines and k steps, a run finds a bug that needs `depth` orderings with a probability of at least
    /// 1 / (n · k^(depth − 1)). (Burckhardt, Kothari, Musuvathi and Nagarakatte, 2010.) A depth
    /// or a number of runs below one traps.
    public static func priorities(depth: Int = 3, runs: Int = 1_000) -> Strategy {
      if depth < 1 { misuse("A bug cannot have a depth of \(depth): look for one of 1 or more.") }
      if runs < 1 { misuse("A strategy with \(runs) runs runs nothing: give it 1 or more.") }
      return Strategy(kind: .priorities(depth: depth, runs: runs))
    }
    /// Every schedule with at most `preemptions` preemptions, those with the fewest first, and at most `most`
    /// schedules.
    ///
    /// A preemption is a switch away from a coroutine that could continue: at a wait that need not wait, or at a
    /// `co_point()`. A write to a connection that is read in pieces counts as one. To run a coroutine that has just
    /// yielded, while others are ready, counts as one too.
    ///
    /// Fewer than 0 preemptions trap, and so does fewer than one schedule.
    public static func exhaustive(preemptions: Int = 2, most: Int = 1_000_000) -> Strategy {
      if preemptions < 0 { misuse("A schedule cannot have \(preemptions) preemptions: allow 0 or more.") }
      if most < 1 { misuse("A strategy with at most \(most) schedules runs nothing: allow 1 or more.") }
      return Strategy(kind: .exhaustive(preemptions: preemptions, most: most))
    }
    /// The one schedule of a token, as a failing run prints it.
    public static func replay(_ token: String) -> Strategy { Strategy(kind: .replay(token)) }

    /// The call that makes it, as `inOrder` or `random(seeds: 100, from: 0)`.
    public var description: String {
      if case .replay(let token) = kind { "replay(\"\(token.asName)\")" } else { "\(kind)" }
    }
  }

  /// Says what the coroutines and Tasks under test share, apart from channels, locks and other objects that they wait
  /// for, and from actors and streams.
  public struct Sharing: Sendable, Hashable, CustomStringConvertible {
    let isOfMemory: Bool

    /// They share memory: every order of two steps may matter.
    public static var memory: Sharing { Sharing(isOfMemory: true) }
    /// They share nothing else.
    ///
    /// An exhaustive search then skips schedules that differ only in the order of steps that touch different objects.
    ///
    /// A step touches the object that it waits for, the objects that its coroutine has used before, the coroutines that
    /// it wakes, launches or cancels, and their queues. A step depends on every other step if it makes its coroutine's
    /// first call on an object that never waits (`trySend`, `fulfill`, `isFinished`), if it follows a `co_point()`, or
    /// if it is a part of a Task that `co_await` has begun, or of a handler. So no outcome is left out; more schedules
    /// than necessary may be tried.
    ///
    /// A step of a Task, in a world with async code, touches the actor on which it runs, itself, and the Tasks that it
    /// resumes. It depends on every other step if it uses an `AsyncStream` for the first time, creates or cancels a
    /// Task, or ends one that is no child. A `Mutex`, an atomic value or an unsafe variable that Tasks share is memory,
    /// and so is a priority that a Task asks for: use `memory` there.
    public static var waits: Sharing { Sharing(isOfMemory: false) }

    /// `memory` or `waits`.
    public var description: String { isOfMemory ? "memory" : "waits" }
  }
}
