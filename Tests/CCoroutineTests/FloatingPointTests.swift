import CCoroutine
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

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

/// How much longer a round trip takes when the resumer's sticky flags differ from the coroutine's, as a factor.
///
/// The two are measured in turn, many times and briefly, and the best of each is taken: other load on the machine makes
/// some batches longer, none shorter.
private func costOfStickyFlags() throws -> Double {
  let trips = 500
  let fiber = try Fiber { fiber in
    feclearexcept(everyFlag)
    while fiber.suspend() == 0 {}
  }
  try fiber.resume()
  func batch() -> Double {
    Machine.nanoseconds { for _ in 0..<trips { _ = try? fiber.resume() } } / Double(trips)
  }
  var clean = Double.infinity
  var sticky = Double.infinity
  for _ in 0..<100 {
    feclearexcept(everyFlag)
    _ = try fiber.resume()
    clean = min(clean, batch())
    precondition(raiseInexact(1) < 1)
    sticky = min(sticky, batch())
  }
  try fiber.resume(1)
  try fiber.destroy()
  print("round trip: clean \(clean) ns, sticky \(sticky) ns")
  return sticky / clean
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
  func stickyFlags() throws {
    let factor = try onThread { try costOfStickyFlags() }
    #expect(factor < 2)
  }

  @Test(
    "Without the cure a round trip costs more than four times as much, where start-up says that the processor stalls",
    .enabled(if: !Machine.isSanitized && stalls)
  )
  func withoutTheCure() async {
    await #expect(processExitsWith: .success) {
      precondition(cco_disable(CCO_CURE_FLOATING_POINT.rawValue))
      let factor = try onThread { try costOfStickyFlags() }
      #expect(factor > 4)
    }
  }

  @Test(
    "Without the cure a round trip costs no more, where start-up says that the processor does not stall",
    .enabled(if: !Machine.isSanitized && !stalls)
  )
  func withoutTheStall() async {
    await #expect(processExitsWith: .success) {
      precondition(cco_disable(CCO_CURE_FLOATING_POINT.rawValue))
      let factor = try onThread { try costOfStickyFlags() }
      #expect(factor < 2)
    }
  }

  static let stalls: Bool = {
    cco_start()
    return cco_facts.reconciles != 0
  }()

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
      try fiber.resume()
      #expect(word() & 0x3F == 0)
      precondition(raiseInexact(1) < 1)
      cco_reconcile_floating_point(fiber.context.pointee.parked.stack!)
      #expect(word() & 0x3F == 0x20)
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
      let fiber = try Fiber { _ in fesetround(upward) }
      try fiber.resume()
      try fiber.reset { _ in
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
