/// How a run's next step is chosen among all that could run.
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
  /// Every schedule with at most so many preemptions, and at most `most` schedules.
  ///
  /// A preemption is a switch away from a coroutine that could continue: at a wait that need not wait, or at a
  /// ``co_point()``. To run a coroutine that has just yielded, while others are ready, counts as one too.
  case exhaustive(preemptions: Int = 2, most: Int = 1_000_000)
  /// The schedule of a token.
  case replay(String)
}

/// What the code under test shares besides channels, locks and the other objects of the runtime.
public enum Sharing: Sendable {
  /// Any memory: every order of two steps may matter.
  case memory
  /// Nothing: coroutines share only what they wait for. An exhaustive search then skips schedules that differ only in
  /// the order of steps that touch different objects.
  ///
  /// A step touches what it waits for, what its coroutine has waited for before, and the coroutines that it wakes,
  /// launches or cancels. A function that never waits (`trySend`, `fulfill`) is known only after a wait for the same
  /// object: put a ``co_point()`` before it, which makes a step dependent on every other.
  case waits
}
