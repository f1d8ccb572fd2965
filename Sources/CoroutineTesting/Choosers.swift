import Coroutine

/// A small generator with a full period (Steele, Lea and Flood, 2014), so that a seed replays a run.
struct SplitMix: RandomNumberGenerator {
  var state: UInt64
  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var mixed = state
    mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }

  /// Returns a number from 0 to below `count`.
  mutating func below(_ count: Int) -> Int {
    Int(truncatingIfNeeded: next().multipliedFullWidth(by: UInt64(count)).high)
  }
}

/// The rate of each fault in a run.
///
/// The rate of a name is drawn once a run, so that runs differ in the faults that they combine.
struct FaultMix {
  private var rates: [String: Int] = [:]

  /// Returns 1 if the fault happens, else 0.
  ///
  /// A fault happens never, or once in 2, 4 or 16 draws on average.
  mutating func draw(_ name: StaticString, _ random: inout SplitMix) -> Int {
    let key = "\(name)"
    let rate = rates[key] ?? [0, 2, 4, 16][random.below(4)]
    rates[key] = rate
    return rate > 0 && random.below(rate) == 0 ? 1 : 0
  }
}

/// Chooses each answer with equal probability, and faults by a `FaultMix`.
final class RandomChooser: Chooser {
  private var random: SplitMix
  private var faults = FaultMix()

  init(seed: UInt64) { random = SplitMix(state: seed &* 0xD134_2543_DE82_EF95 &+ 1) }

  override func answer(_ question: Question) -> Int {
    switch question.kind {
    case .fault, .split, .late: faults.draw(question.name, &random)
    case .next, .selectCase: random.below(question.count)
    }
  }
}

/// Chooses by priorities: probabilistic concurrency testing (Burckhardt et al., 2010).
///
/// - Each coroutine gets a random priority. The candidate with the highest priority runs.
/// - At `depth - 1` random steps, the coroutine that would run gets a priority below all others.
/// - A coroutine that yields gets a priority below all others too. Otherwise it would run again for ever.
final class PriorityChooser: Chooser {
  private var random: SplitMix
  private var faults = FaultMix()
  private var priorities: [UInt64: UInt64] = [:]
  private var changes: Set<Int> = []
  private var position = 0
  /// The lowest priority so far of a coroutine that was lowered; below all priorities that are drawn.
  private var lowest = UInt64(1) << 32

  /// Creates a chooser; `length` is the expected number of choices of a run.
  init(seed: UInt64, depth: Int, length: Int) {
    random = SplitMix(state: seed &* 0x9E6C_63D0_876A_3F6B &+ 7)
    // No more than there are steps, which are all lowered then: `depth` may be any number.
    for _ in 1..<min(max(1, depth), max(1, length) + 1) { changes.insert(random.below(max(1, length))) }
  }

  private func priority(_ id: UInt64) -> UInt64 {
    if let known = priorities[id] { return known }
    let drawn = random.next() | 1 << 33
    priorities[id] = drawn
    return drawn
  }

  private func lower(_ id: UInt64) {
    lowest -= 1
    priorities[id] = lowest
  }

  private func highest(_ question: Question) -> Int {
    var best = 0
    for index in 1..<question.count
    where priority(question.candidates[index].id) > priority(question.candidates[best].id) {
      best = index
    }
    return best
  }

  override func answer(_ question: Question) -> Int {
    switch question.kind {
    case .fault, .split, .late: return faults.draw(question.name, &random)
    case .selectCase: return random.below(question.count)
    case .next: break
    }
    defer { position += 1 }
    if !question.continues, question.candidates.contains(where: { $0.id == question.previous }) {
      lower(question.previous)
    }
    if changes.contains(position) { lower(question.candidates[highest(question)].id) }
    return highest(question)
  }
}

/// Repeats recorded answers; answers 0 if no answer is left, or if the recorded one is not possible.
final class ReplayChooser: Chooser {
  private let choices: [Choice]
  private var position = 0
  private var impossible: Int?

  init(_ choices: [Choice]) { self.choices = choices }

  override func answer(_ question: Question) -> Int {
    defer { position += 1 }
    guard position < choices.count else { return 0 }
    guard choices[position].chosen < question.count else {
      impossible = impossible ?? position
      return 0
    }
    return Int(choices[position].chosen)
  }

  /// The number of the first recorded answer that was not possible, or for which there was no question; nil if all were
  /// given.
  ///
  /// Asked after the run.
  var divergence: Int? { impossible ?? (position < choices.count ? position : nil) }
}
