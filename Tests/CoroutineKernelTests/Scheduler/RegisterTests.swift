import Testing

@testable import Coroutine

/// Values that the compiler keeps in registers over a switch: the switch must declare all that it does not preserve.
@Suite("Registers over a switch", .timeLimit(.minutes(10)))
struct RegisterTests {
  @Test func `vectors, doubles and integers belong to one coroutine`() async throws {
    let sums = try await onSerialQueue {
      try co_all(
        (1...4).map { number in
          co_launch {
            var vector = SIMD16<Float>(repeating: Float(number))
            var (real, whole) = (Double(number), number)
            for _ in 0..<1_000 {
              vector += 1
              real += 0.5
              whole += 3
              try co_yield()
            }
            return Double(vector.sum()) + real + Double(whole)
          }
        }
      )
    }
    // 16 (n + 1000), n + 500 and n + 3000.
    let expected: [Double] = [19_518, 19_536, 19_554, 19_572]
    #expect(sums == expected)
  }

  #if arch(x86_64)
  @Test func `an 80-bit number lives over a switch, and the register stack never overflows`() async throws {
    let sums = try await onSerialQueue {
      try co_all(
        (1...12).map { number in
          co_launch {
            var sum = Float80(number) / 3
            for _ in 0..<1_000 {
              let half = sum / 2
              try co_yield()
              sum += half - sum / 2 + 1
            }
            return Double(sum)
          }
        }
      )
    }
    #expect(sums == (1...12).map { Double(Float80($0) / 3 + 1_000) })
  }
  #endif
}
