internal import CCoroutine

// Whether it pays for a worker to take other workers' work.
//
// What is stolen is cold: its records and frames come from another processor's caches, its memory goes back to another
// thread's, and both sides wait for each other's locks. A job that stays with the thief, or brings forth more, is worth
// that. A million jobs of twenty nanoseconds that are launched in a loop are not, and a handful of coroutines that meet at
// one channel are faster on one processor than on two that fight for it.
//
// Only the thief can tell: by the processor time that the loot has kept it busy for. Three times in a row less than
// `worth` for each stolen job, and the worker rests: it neither looks at the others nor takes offers, until the group's
// watchdog sends it to look again (Watchdog.swift). One more theft that does not pay sends it back to rest, one that does
// makes it as eager as before.

/// What a worker remembers of its thefts.
///
/// The drain only.
struct StealBackoff {
  /// What a stolen job must keep the thief busy for, in ns.
  ///
  /// Measured: a million empty jobs take 0.4 to 0.6 µs each when two workers share them, and 0.14 when one has them all.
  /// More would keep jobs of a few µs on one worker.
  static var worth: UInt64 { 2_000 }
  /// So many thefts in a row may be worth less.
  static var patience: UInt8 { 3 }

  /// A point in a thread's processor time: what a worker waits for, others' locks and processors, is no work.
  struct Moment {
    var thread: UInt
    var nanoseconds: UInt64

    static var now: Moment { Moment(thread: UInt(bitPattern: cco_thread()), nanoseconds: Clock.ofThread) }
  }

  private var count = 0
  private var taken = Moment(thread: 0, nanoseconds: 0)
  private var poor: UInt8 = 0

  /// Notes a theft of so many jobs.
  mutating func took(_ count: Int, at now: Moment) {
    self.count = count
    taken = now
  }

  /// The worker has nothing to do: whether it should look for more.
  ///
  /// False: it should rest, and the next answer is true. The clock is read only where there is a theft to judge.
  mutating func pays(at now: @autoclosure () -> Moment) -> Bool {
    guard count > 0 else { return true }
    let now = now()
    // On another thread by now the two times have nothing to do with one another. That takes a new slice of the drain, so
    // as a rule the loot has lasted.
    let isPoor = now.thread == taken.thread && now.nanoseconds &- taken.nanoseconds < UInt64(count) &* Self.worth
    count = 0
    poor = isPoor ? poor + 1 : 0
    guard poor >= Self.patience else { return true }
    poor = Self.patience - 1
    return false
  }
}
