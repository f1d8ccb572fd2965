import CCoroutine
import Coroutine
import Glibc

/// One seeded run of a stress test.
///
/// `CO_STRESS` multiplies the rounds of every test. `CO_SEED` replays a run: random numbers of the test are the same
/// again, the scheduling of threads is not.
struct Stress {
  let seed: UInt64
  let factor: Double

  init() {
    seed = Self.variable("CO_SEED").flatMap { UInt64($0) } ?? .random(in: 0 ... .max)
    factor = Self.variable("CO_STRESS").flatMap { Double($0) } ?? 1
  }

  /// Returns `usual` times `CO_STRESS`, and at least `least`.
  func rounds(_ usual: Int, least: Int = 1) -> Int { max(least, Int(Double(usual) * factor)) }

  /// The number of coroutines at once.
  ///
  /// ThreadSanitizer maps memory for each, and ends the process at vm.max_map_count, which is usually 65,530.
  func crowd(_ usual: Int) -> Int {
    let isLimited = cco_compiled_sanitizers() & CCO_THREAD_SANITIZER.rawValue != 0
    return min(rounds(usual, least: 2), isLimited ? 10_000 : .max)
  }

  /// The smallest sufficient stack of a parked coroutine: AddressSanitizer makes every frame several times as large.
  var smallStack: StackSize {
    let isLarge = cco_compiled_sanitizers() & CCO_ADDRESS_SANITIZER.rawValue != 0
    return .bytes(isLarge ? 64 * 1_024 : 16 * 1_024)
  }

  /// The random numbers of one part of the run: parts do not share a generator, so their order does not matter.
  func random(_ part: Int) -> SeededRandom {
    SeededRandom(seed: seed ^ (UInt64(truncatingIfNeeded: part) &+ 1) &* 0x9E37_79B9_7F4A_7C15)
  }

  /// For the comment of every expectation.
  var replay: String { "replay with CO_SEED=\(seed) CO_STRESS=\(factor)" }

  private static func variable(_ name: String) -> String? { getenv(name).map { String(cString: $0) } }
}

/// SplitMix64.
struct SeededRandom: RandomNumberGenerator {
  private var state: UInt64

  init(seed: UInt64) {
    state = seed
  }

  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var mixed = state
    mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }
}
