import Synchronization

// What a scheduler counts: words that one writer at a time increases, and that any thread adds up
// (SchedulerRegistry.totals). No two schedulers share a word, so counting costs no cache miss.
//
//   word                                    its writer
//   launched, ended, failed, cancelled      the holder of the scheduler's live lock
//   switches, steals, wakeToRun, runLength  the drain; of a worker's steals the thief's drain
//   timers, timerLateness                   the holder of the scheduler's timer lock
//   stalls, spareWorkers                    any thread, by read-modify-write; in the words of the ended schedulers only
//
// Invariants
//  1. A word never decreases. A writer increases it by a load and a store: it is the only writer, and two writers
//     that follow each other are ordered by the lock, or by the inbox (Inbox.swift).
//  2. A coroutine is counted in `launched` before it is counted in `ended`, perhaps by another scheduler, and in
//     `failed` or `cancelled` before that. The stores release, and `totals` loads all words of `ended` before it loads
//     any of `launched`. So it never finds more ends than launches.
//  3. The memory of the words is freed after the scheduler has left the registry.
//
// Why no sum decreases while a scheduler ends. Its words are added to those of the ended schedulers, and it is removed
// from the registry, in one critical section of the registry's lock. `totals` adds up all words in one such section,
// without a reference to a scheduler: a scheduler in its deinit is still in the registry, and its words are in memory
// until its deinit has left that lock. So each sum contains each scheduler once. Nothing is counted in its deinit.
// The word itself: a scheduler whose last drain has ended is released, and the release of the last reference orders
// the drain's stores before the deinit.
//
// The switches. No switch counts itself. A carrier counts its budget down at each switch (`Carrier.switchesLeft`), and
// the driver knows what it has granted. The difference is the number of switches since the driver has last published
// them, which it does whenever it reads the clock, and before it goes idle. So a reader sees them up to 64 switches
// late, and after that sees all of them.

/// The words of one scheduler.
// Sound because the words are atomic, and their memory lives as long as the scheduler.
struct CounterWords: @unchecked Sendable {
  /// The kinds of words.
  ///
  /// The last three are the first buckets of histograms; a word with the sum follows the buckets.
  enum Kind: Int {
    case launched, ended, failed, cancelled, switches, steals, timers, stalls, spareWorkers
    case wakeToRun = 16
    case runLength = 40
    case timerLateness = 64
  }

  static var count: Int { 88 }

  private let words: UnsafeMutablePointer<Atomic<UInt64>>

  init() {
    words = .allocate(capacity: Self.count)
    for index in 0..<Self.count { (words + index).initialize(to: Atomic(0)) }
  }

  func free() {
    words.deinitialize(count: Self.count)
    words.deallocate()
  }

  /// Increases a word; called by its writer.
  @inline(__always)
  func add(_ count: UInt64 = 1, to kind: Kind) { add(count, at: kind.rawValue) }

  @inline(__always)
  private func add(_ count: UInt64, at index: Int) {
    words[index].store(words[index].load(ordering: .relaxed) &+ count, ordering: .releasing)
  }

  /// Increases a word that has several writers.
  func addShared(_ count: UInt64 = 1, to kind: Kind) {
    _ = words[kind.rawValue].wrappingAdd(count, ordering: .relaxed)
  }

  /// Adds a duration to a histogram, `count` times; called by its writer.
  func note(_ nanoseconds: UInt64, in histogram: Kind, times count: UInt64 = 1) {
    add(nanoseconds &* count, at: histogram.rawValue + HistogramScale.buckets)
    add(count, at: histogram.rawValue + HistogramScale.bucket(of: nanoseconds))
  }

  /// Loads a word.
  subscript(kind: Kind) -> UInt64 { words[kind.rawValue].load(ordering: .relaxed) }

  /// Adds some words to `sums`.
  func add(_ range: Range<Int>, to sums: inout [UInt64]) {
    for index in range { sums[index] &+= words[index].load(ordering: .acquiring) }
  }

  /// Adds all words to those of the ended schedulers, which several threads increase.
  func add(to others: CounterWords) {
    for index in 0..<Self.count {
      _ = others.words[index].wrappingAdd(words[index].load(ordering: .relaxed), ordering: .releasing)
    }
  }
}

/// The scale of the histograms: 1, 2 and 5 in each decade from 1 µs to 10 s, and one bucket for what is longer.
enum HistogramScale {
  /// The number of buckets with an upper bound.
  static var bounds: Int { 22 }
  /// The number of buckets.
  static var buckets: Int { bounds + 1 }

  /// The upper bound of a bucket in ns, which belongs to it.
  static func bound(_ bucket: Int) -> UInt64 {
    var power: UInt64 = 1_000
    for _ in 0..<bucket / 3 { power *= 10 }
    return power * (bucket % 3 == 0 ? 1 : bucket % 3 == 1 ? 2 : 5)
  }

  /// The bucket of a duration.
  static func bucket(of nanoseconds: UInt64) -> Int {
    var (decade, power) = (0, UInt64(1_000))
    while decade < 7, nanoseconds > power &* 5 {
      decade += 1
      power &*= 10
    }
    if decade == 7 { return nanoseconds <= power ? bounds - 1 : bounds }
    return decade * 3 + (nanoseconds <= power ? 0 : nanoseconds <= power &* 2 ? 1 : 2)
  }
}
