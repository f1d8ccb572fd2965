import CCoroutine
import CTestSupport
import Glibc
import Testing

// The headers define these twice, as numbers of different types; the type chooses.
private let upward: Int32 = FE_UPWARD
private let downward: Int32 = FE_DOWNWARD
private let towardZero: Int32 = FE_TOWARDZERO
private let toNearest: Int32 = FE_TONEAREST
/// feclearexcept takes the flags that exist.
private let everyFlag: Int32 = -1

/// Raises the processor's sticky "inexact" flag, as any division may.
@inline(never)
private func raiseInexact(_ one: Double) -> Double { one / 3 }

/// Measures the processor time of a round trip in ns, with equal and with different sticky flags on both sides.
///
/// Long runs; the best batch of each kind counts, because other load makes batches longer and never shorter.
private func costOfStickyFlags() throws -> (clean: Double, sticky: Double) {
  let trips = 50_000
  let fiber = try Fiber { fiber in
    feclearexcept(everyFlag)
    while fiber.suspend() == 0 {}
  }
  try fiber.resume()
  func batch() -> Double {
    Machine.processorNanoseconds {
      for _ in 0..<trips { _ = try? fiber.resume() }
    } / Double(trips)
  }
  var clean = Double.infinity
  var sticky = Double.infinity
  // More of them where others keep the processor busy: one kind may have had all of the quiet moments.
  var rounds = 0
  while rounds < 30 || (sticky >= 2 * clean && rounds < 3_000) {
    rounds += 1
    feclearexcept(everyFlag)
    _ = try fiber.resume()
    clean = min(clean, batch())
    precondition(raiseInexact(1) < 1)
    sticky = min(sticky, batch())
  }
  try fiber.resume(1)
  try fiber.destroy()
  print("round trip: clean \(clean) ns, sticky \(sticky) ns")
  return (clean, sticky)
}

@Suite("Floating point")
struct FloatingPointTests {
  static let onX86: Bool = {
    #if arch(x86_64)
    true
    #else
    false
    #endif
  }()

  @Test("A round trip costs the same after an inexact result", .enabled(if: !Machine.isSanitized))
  func stickyFlags() async {
    await #expect(processExitsWith: .success) {
      let cost = try onThread { try costOfStickyFlags() }
      #expect(cost.sticky < 2 * cost.clean)
    }
  }

  // Started with COROUTINE_RECONCILE=0 the test fails on a processor that stalls.
  @Test(
    "Start-up says that this processor stalls on different flags exactly where the clock says so",
    .enabled(if: onX86 && !Machine.isSanitized)
  )
  func verdict() async {
    await #expect(processExitsWith: .success) {
      cco_start()
      let reconciles = cco_facts.reconciles != 0
      // In turn, the best of each: other load changes a processor's pace, for a while. More where that may be so.
      let cost = try onThread {
        var best = (equal: Double.infinity, different: Double.infinity)
        for round in 1...100 {
          best.equal = min(best.equal, cts_round_trip(0))
          best.different = min(best.different, cts_round_trip(1))
          if round >= 8, (best.different > 3 * best.equal) == reconciles { break }
        }
        return best
      }
      #expect((cost.different > 3 * cost.equal) == reconciles, "\(cost) \(String(cString: cco_report()))")
    }
  }

  @Test(
    "AMD's processors from family 17h on do not stall on different flags; all others are taken to",
    arguments: [
      ("GenuineIntel", 6, true), ("GenuineIntel", 19, true), ("AuthenticAMD", 0x15, true),
      ("AuthenticAMD", 0x17, false), ("AuthenticAMD", 0x19, false), ("AuthenticAMD", 0x1A, false),
      ("HygonGenuine", 0x18, false), ("CentaurHauls", 7, true), ("", 0, true),
    ]
  )
  func makers(_ maker: String, _ family: UInt32, _ stalls: Bool) {
    #expect(cco_stalls_on_flags(maker, family) == stalls)
  }

  @Test("COROUTINE_RECONCILE overrides the choice made at start-up", .enabled(if: onX86), arguments: ["0", "1"])
  func override(_ value: String) async {
    await #expect(processExitsWith: .success) { [value] in
      setenv("COROUTINE_RECONCILE", value, 1)
      cco_start()
      #expect(cco_facts.reconciles == UInt32(value))
      #expect(String(cString: cco_report()).contains("COROUTINE_RECONCILE"))
    }
  }

  @Test(
    "Flags that differ are taken over before a jump, control bits are not",
    .enabled(if: onX86 && !Machine.isSanitized)
  )
  func reconciliation() throws {
    try onThread {
      let fiber = try Fiber { fiber in
        feclearexcept(everyFlag)
        fiber.suspend()
        fesetround(upward)
        fiber.suspend()
        fesetround(toNearest)
      }
      /// The first word of the parked frame: its MXCSR.
      func word() -> UInt32 { fiber.context.pointee.parked.stack!.load(as: UInt32.self) }
      // Without the flag of denormal operands, 2: a thread may inherit it, and feclearexcept does not clear it.
      let flags: UInt32 = 0x3D
      try fiber.resume()
      #expect(word() & flags == 0)
      precondition(raiseInexact(1) < 1)
      cco_reconcile_floating_point(fiber.context.pointee.parked.stack!)
      #expect(word() & flags == 0x20)
      try fiber.resume()
      let parked = word()
      feclearexcept(everyFlag)
      cco_reconcile_floating_point(fiber.context.pointee.parked.stack!)
      #expect(word() == parked)
      try fiber.resume()
      try fiber.destroy()
    }
  }

  @Test("Each context keeps its rounding mode, and its resumer keeps its own", .enabled(if: onX86))
  func roundingModes() throws {
    let modes = [upward, downward, towardZero, toNearest]
    try onThread {
      var seen = [[Int32]](repeating: [], count: modes.count)
      let fibers = try modes.indices.map { index in
        try Fiber { fiber in
          fesetround(modes[index])
          for _ in 0..<5 {
            fiber.suspend()
            seen[index].append(fegetround())
          }
        }
      }
      for _ in 0..<6 {
        for fiber in fibers {
          try fiber.resume()
          #expect(fegetround() == toNearest)
        }
      }
      for (index, mode) in modes.enumerated() { #expect(seen[index] == [mode, mode, mode, mode, mode]) }
      for fiber in fibers { try fiber.destroy() }
    }
  }

  @Test("A rounding mode that a body leaves behind does not reach the next body on its stack", .enabled(if: onX86))
  func nextBody() throws {
    try onThread {
      var second: Int32?
      var third: Int32?
      var fiber = try Fiber { _ in fesetround(upward) }
      try fiber.resume()
      try fiber.replaceBody { _ in
        second = fegetround()
        fesetround(downward)
      }
      try fiber.resume()
      try fiber.destroy()
      let next = try Fiber { _ in third = fegetround() }
      try next.resume()
      try next.destroy()
      #expect(second == toNearest)
      #expect(third == toNearest)
    }
  }
}
