@testable import Coroutine

#if canImport(Glibc)
import Glibc
#else
import Musl
#endif

/// One seeded run of a stress test: CO_STRESS multiplies its rounds, CO_SEED replays it.
struct BridgeStress {
  let seed: UInt64
  let factor: Double

  init() {
    seed = Self.variable("CO_SEED").flatMap { UInt64($0) } ?? UInt64.random(in: 0 ... .max)
    factor = Self.variable("CO_STRESS").flatMap { Double($0) } ?? 1
  }

  func rounds(_ usual: Int) -> Int { max(1, Int(Double(usual) * factor)) }

  /// The random numbers of one part of the run.
  func random(_ part: Int) -> SplitMix {
    SplitMix(state: seed &+ UInt64(truncatingIfNeeded: part) &* 0x1234_5678_9ABC_DEF1)
  }

  /// For the comment of an expectation.
  var replay: String { "replay with CO_SEED=\(seed) CO_STRESS=\(factor)" }

  private static func variable(_ name: String) -> String? { getenv(name).map { String(cString: $0) } }
}
