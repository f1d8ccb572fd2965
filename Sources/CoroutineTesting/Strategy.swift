extension Exploration {
  /// Chooses the next step of a run among all coroutines that can run.
  public enum Strategy: Sendable, Hashable {
    /// First in, first out: one run.
    case inOrder
    /// Any order with equal probability, once for each of `seeds` seeds, beginning with `from`.
    case random(seeds: Int = 100, from: UInt64 = 0)
    /// Probabilistic concurrency testing: each coroutine has a random priority, and at `depth - 1` random steps the
    /// running one gets the lowest.
    ///
    /// Of n coroutines and k steps, a run finds a bug that needs `depth` orderings with a probability of at least
    /// 1 / (n · k^(depth − 1)). (Burckhardt, Kothari, Musuvathi and Nagarakatte, 2010.)
    case priorities(depth: Int = 3, runs: Int = 1_000)
    /// Every schedule with at most `preemptions` preemptions, and at most `most` schedules.
    ///
    /// A preemption is a switch away from a coroutine that could continue: at a wait that need not wait, or at a
    /// `co_point()`. To run a coroutine that has just yielded, while others are ready, counts as one too.
    case exhaustive(preemptions: Int = 2, most: Int = 1_000_000)
    /// The one schedule of a token, as a failing run prints it.
    case replay(String)
  }

  /// Says what the coroutines under test share, apart from channels, locks and other objects that they wait for.
  public enum Sharing: Sendable {
    /// They share memory: every order of two steps may matter.
    case memory
    /// They share nothing else.
    ///
    /// An exhaustive search then skips schedules that differ only in the order of steps that touch different objects.
    ///
    /// A step touches the object that it waits for, the objects that its coroutine has used before, the coroutines that
    /// it wakes, launches or cancels, and their queues. A step depends on every other step if it makes its coroutine's
    /// first call on an object that never waits (`trySend`, `fulfill`, `isFinished`), if it follows a `co_point()`, or
    /// if it is a part of a Task or a handler. So no outcome is left out; more schedules than necessary may be tried.
    case waits
  }
}
