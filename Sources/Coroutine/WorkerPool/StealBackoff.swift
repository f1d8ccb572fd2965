internal import CCoroutine

// Back-off of stealing: a worker pauses if stealing does not pay.
//
// Costs. Stolen work is cold: its records and frames come from another processor's caches, its memory goes back to
// another thread's, and both sides wait for each other's locks.
// - It pays for a job that stays with the stealing worker, or launches more jobs.
// - It does not pay for a million jobs of twenty nanoseconds, launched in a loop. A handful of coroutines that
//   communicate over one channel are faster on one processor than on two that compete for it.
// - It does not pay to be woken for ready jobs that keep their thread (Scheduler+Keep.swift).
//
// Rule. Only the stealing worker can judge, by the processor time for which the stolen jobs have kept it busy. If that
// is less than `worth` per stolen job three times in a row, the worker backs off: it neither inspects other workers nor
// accepts offers, until the pool's watchdog ends the back-off (Watchdog.swift). After that, one more steal that does
// not pay makes it back off again. One steal that pays resets the count.

/// The record of a worker's steals.
///
/// Used by the worker's drain only.
struct StealBackoff {
  /// The processor time for which a stolen job must keep the worker busy, in ns.
  ///
  /// Measured: a million empty jobs take 0.4 to 0.6 µs each if two workers share them, and 0.14 µs if one worker has
  /// them all. A larger value would keep jobs of a few µs on one worker.
  static var worth: UInt64 { 2_000 }
  /// The number of unprofitable steals in a row after which the worker backs off.
  static var limit: UInt8 { 3 }

  /// A point in a thread's processor time.
  ///
  /// Waiting for others' locks and processors does not count as work.
  struct Moment {
    var thread: UInt
    var nanoseconds: UInt64

    static var now: Moment { Moment(thread: currentThread, nanoseconds: Clock.ofThread) }
    static var currentThread: UInt { UInt(bitPattern: cco_thread()) }
  }

  private var count = 0
  private var taken = Moment(thread: 0, nanoseconds: 0)
  private var unprofitable: UInt8 = 0

  /// Records a steal of `count` jobs.
  mutating func took(_ count: Int, at now: Moment) {
    self.count = count
    taken = now
  }

  /// Records that the only ready jobs keep their threads, which counts as a steal that does not pay.
  mutating func foundOnlyKept() {
    // As if so many jobs had been stolen that no processor time of this thread would be enough.
    count = 1 << 52
    taken = Moment(thread: Moment.currentThread, nanoseconds: 0)
  }

  /// Whether an idle worker should try to steal.
  ///
  /// False means that it should back off; the next result is true. The clock is read only if there is a steal to judge.
  mutating func pays(at now: @autoclosure () -> Moment) -> Bool {
    guard count > 0 else { return true }
    let now = now()
    // If the drain is on another thread by now, the two times are not comparable. A change of thread takes a new time
    // slice, so usually the stolen jobs have lasted long.
    let isUnprofitable =
      now.thread == taken.thread && now.nanoseconds &- taken.nanoseconds < UInt64(count) &* Self.worth
    count = 0
    unprofitable = isUnprofitable ? unprofitable + 1 : 0
    guard unprofitable >= Self.limit else { return true }
    unprofitable = Self.limit - 1
    return false
  }
}
