// The random numbers of a carrier: a select chooses by them among several ready cases, a back-off draws its pauses.

extension Carrier {
  /// Draws a random number from 0 to below 1; in a simulated world from the numbers of the world's seed.
  static func drawFraction() -> Double {
    guard let carrier = current, let scheduler = carrier.pointee.scheduler else { return .random(in: 0..<1) }
    return scheduler._withUnsafeGuaranteedRef { $0.host.random(carrier) }
  }

  /// Draws a random number: a Weyl sequence that starts with the carrier, mixed on the way out (SplitMix).
  ///
  /// Each carrier has its own, so that selects on different threads share no memory word.
  @inline(__always)
  mutating func drawNumber() -> UInt64 {
    random &+= 0x9E37_79B9_7F4A_7C15
    var mixed = (random ^ (random >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }
}
