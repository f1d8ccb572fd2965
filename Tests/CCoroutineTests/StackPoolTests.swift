import CCoroutine
import Testing

/// Tests that inspect the whole pool run in a separate process, because other tests use it at the same time.
@Suite("Stacks and their pool")
struct StackPoolTests {
  static let classes = [16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20]

  @Test("A size is rounded up to its class; sizes above the largest class have none", arguments: 0..<7)
  func rounding(of index: Int) throws {
    let size = Self.classes[index]
    #expect(cco_stack_class(size) == index)
    #expect(cco_stack_class(size - 1) == index)
    #expect(cco_stack_class(size + 1) == index + 1)
  }

  @Test("A stack is as large as its class, but for the control block and its colour", arguments: 0..<7)
  func usableSize(of index: Int) throws {
    let fiber = try Fiber(stack: Self.classes[index]) { _ in }
    let block = fiber.context.pointee
    let usable = fiber.high - block.low
    #expect(usable <= Self.classes[index])
    #expect(usable > Self.classes[index] - Machine.page)
    #expect(UInt(bitPattern: fiber.high) % 16 == 0)
    #expect(block.size_class == index)
    try fiber.destroy()
  }

  @Test("Each use of a stack has its own number, and an unused stack has none")
  func serials() throws {
    var seen: Set<UInt64> = []
    for _ in 0..<100 {
      let (one, other) = (try Fiber { _ in }, try Fiber { _ in })
      for fiber in [one, other] {
        #expect(fiber.context.pointee.serial != 0)
        #expect(seen.insert(fiber.context.pointee.serial).inserted)
        try fiber.resume()
        try fiber.destroy()
      }
    }
    #expect(seen.count == 200)
  }

  @Test("A size of zero gets the smallest class")
  func nothing() throws {
    #expect(cco_stack_class(0) == 0)
    let fiber = try Fiber(stack: 0) { _ in }
    try fiber.resume()
    try fiber.destroy()
  }

  @Test("A stack above the largest class is refused with a message", arguments: [(16 << 20) + 1, Int.max])
  func tooLarge(size: Int) {
    #expect(throws: Fiber.Refusal.self) { try Fiber(stack: size) { _ in } }
    #expect(String(cString: cco_status_message(CCO_STACK_TOO_LARGE)).contains("16 MiB"))
  }

  @Test(
    "A body may use nearly all of its stack",
    .enabled(if: !Machine.hasAddressSanitizer, "it keeps local variables elsewhere"),
    arguments: 0..<7
  )
  func nearTheEnd(of index: Int) throws {
    let size = Self.classes[index]
    var lowest = UInt.max
    @inline(never)
    func fill(_ fiber: Fiber) -> Int {
      withUnsafeTemporaryAllocation(of: UInt8.self, capacity: 128) { frame in
        frame.initialize(repeating: UInt8(truncatingIfNeeded: size))
        let here = UInt(bitPattern: frame.baseAddress)
        lowest = min(lowest, here)
        let room = Int(here - UInt(bitPattern: fiber.context.pointee.low))
        return Int(frame[5]) &+ (room > (Machine.isSanitized ? 8 << 10 : 3 << 10) ? fill(fiber) : 0)
      }
    }
    let fiber = try Fiber(stack: size) { fiber in _ = fill(fiber) }
    try fiber.resume()
    #expect(fiber.state == CCO_FINISHED)
    // The frames were really there: all but the last few KiB of the class.
    let used = Int(UInt(bitPattern: fiber.high) - lowest)
    #expect(used > size - (16 << 10))
    try fiber.destroy()
  }

  @Test("The stack given back last is handed out first, and the counters show it")
  func lastInFirstOut() async {
    await #expect(processExitsWith: .success) {
      let before = cco_stacks()
      let fibers = try (0..<5).map { _ in try Fiber(stack: 256 << 10) { fiber in fiber.suspend() } }
      #expect(cco_stacks().live == before.live + 5)
      #expect(cco_stacks().peak >= 5)
      for fiber in fibers {
        try fiber.resume()
        try fiber.resume()
        try fiber.destroy()
      }
      #expect(cco_stacks().live == before.live)
      #expect(cco_stacks().pooled_dirty == before.pooled_dirty + 5)
      let again = try (0..<5).map { _ in try Fiber(stack: 256 << 10) { _ in } }
      #expect(again.map(\.context) == fibers.reversed().map(\.context))
      #expect(cco_stacks().pooled == before.pooled)
      for fiber in again { try fiber.destroy() }
      #expect(cco_stacks().peak == max(before.peak, 5))
    }
  }

  @Test("Control blocks of neighbouring stacks do not share cache sets")
  func colours() async {
    await #expect(processExitsWith: .success) {
      let fibers = try (0..<16).map { _ in try Fiber(stack: 64 << 10) { _ in } }
      let lines = fibers.map { UInt(bitPattern: $0.context) % 4096 / 64 }
      #expect(Set(lines).count >= 8)
      for fiber in fibers { try fiber.destroy() }
    }
  }

  @Test("An address finds the context whose stack it lies in, and whether it lies in the guard")
  func lookup() async {
    await #expect(processExitsWith: .success) {
      let fibers = try (0..<3).map { _ in try Fiber(stack: 64 << 10) { fiber in fiber.suspend() } }
      for fiber in fibers {
        try fiber.resume()
        let block = fiber.context.pointee
        var inGuard = true
        #expect(cco_context_at(block.low, &inGuard) == UnsafePointer(fiber.context))
        #expect(!inGuard)
        #expect(cco_context_at(fiber.high - 1, &inGuard) == UnsafePointer(fiber.context))
        #expect(!inGuard)
        #expect(cco_context_at(block.low - 1, &inGuard) == UnsafePointer(fiber.context))
        #expect(inGuard)
      }
      var local = 0
      #expect(cco_context_at(&local, nil) == nil)
      #expect(cco_context_at(UnsafeRawPointer(bitPattern: 8)!, nil) == nil)
      for fiber in fibers {
        let low = fiber.context.pointee.low
        try fiber.resume()
        try fiber.destroy()
        #expect(cco_context_at(low, nil) == nil)
      }
      // Also after the slab has been freed.
      let addresses = fibers.map { UnsafeRawPointer($0.context) }
      cco_trim(0)
      for address in addresses { #expect(cco_context_at(address, nil) == nil) }
    }
  }

  @Test("Threads that create and destroy at the same time never share a stack")
  func threads() throws {
    let rounds = Machine.isSanitized ? 500 : 20_000
    let clashes = try concurrently(threads: 4) { thread in
      var clashes = 0
      for round in 0..<rounds {
        let fiber = try Fiber(stack: 16 << 10) { fiber in
          let sent = fiber.suspend(thread * rounds + round)
          if sent != round + 1 { clashes += 1 }
        }
        if try fiber.resume() != thread * rounds + round { clashes += 1 }
        try fiber.resume(round + 1)
        try fiber.destroy()
      }
      return clashes
    }
    #expect(clashes == [0, 0, 0, 0])
  }
}
