import CCoroutine
import CCoroutineInspect
import Testing

@Suite("Returning memory")
struct TrimTests {
  static let count = Machine.isSanitized ? 200 : 2000

  @Test("Trimming returns the memory and the address space of unused stacks")
  func everything() async {
    await #expect(processExitsWith: .success) {
      let count = TrimTests.count
      let idle = cco_stacks()
      let fibers = try (0..<count).map { _ in try Fiber(stack: 64 << 10) { fiber in fiber.suspend() } }
      for fiber in fibers { try fiber.resume() }
      let full = Machine.memory.resident
      for fiber in fibers {
        try fiber.resume()
        try fiber.destroy()
      }
      #expect(cco_stacks().pooled_dirty == idle.pooled_dirty + UInt64(count))
      #expect(cco_trim(0) >= count)
      let counters = cco_stacks()
      #expect(counters.live == idle.live)
      #expect(counters.pooled_dirty == 0)
      // One small slab per class is left.
      #expect(counters.mapped_bytes < 8 << 20)
      if !Machine.isSanitized { #expect(full - Machine.memory.resident > count * Machine.page * 9 / 10) }
      #expect(cco_trim(0) == 0)
    }
  }

  @Test("While stacks are walked no slab is unmapped, and the end of the last walk unmaps what trimming has left")
  func pinned() async {
    await #expect(processExitsWith: .success) {
      var walks = [cco_walk(), cco_walk()]
      // The first walk may make a stack of its own.
      let status = cco_walk_begin(&walks[0])
      if status == CCO_WALK_SANITIZED { return }
      #expect(status == CCO_WALK_READY && cco_walk_begin(&walks[1]) == CCO_WALK_READY)
      let fibers = try (0..<TrimTests.count).map { _ in try Fiber(stack: 64 << 10) { _ in } }
      for fiber in fibers { try fiber.destroy() }
      let before = cco_stacks().mapped_bytes
      #expect(cco_trim(0) >= TrimTests.count)
      #expect(cco_stacks().mapped_bytes == before)
      // The control blocks are still readable: zeros.
      #expect(fibers.allSatisfy { UInt(bitPattern: $0.context.pointee.low) == 0 })
      cco_walk_end(&walks[0])
      #expect(cco_stacks().mapped_bytes == before)
      cco_walk_end(&walks[1])
      #expect(cco_stacks().mapped_bytes < 8 << 20)
    }
  }

  @Test("Trimming keeps the requested number of hot stacks, the most recently used ones")
  func keep() async {
    await #expect(processExitsWith: .success) {
      let fibers = try (0..<100).map { _ in try Fiber(stack: 64 << 10) { _ in } }
      for fiber in fibers { try fiber.destroy() }
      #expect(cco_trim(10) == 90)
      #expect(cco_stacks().pooled_dirty >= 10)
      for fiber in fibers.suffix(10) { #expect(Machine.isResident(fiber.context)) }
      let again = try (0..<10).map { _ in try Fiber(stack: 64 << 10) { _ in } }
      #expect(again.map(\.context) == fibers.suffix(10).reversed().map(\.context))
      for fiber in again { try fiber.destroy() }
    }
  }

  @Test(
    "Of large stacks fewer stay hot, because each may have been used to its end",
    arguments: [
      (64 << 10, 1024), (512 << 10, 128), (4 << 20, 16), (16 << 20, 4),
    ]
  )
  func byBytes(_ bytes: Int, _ kept: Int) async {
    await #expect(processExitsWith: .success) { [bytes, kept] in
      let count = kept * 2 + 8
      cco_start()
      // What the start itself has used.
      cco_trim(0)
      let fibers = try (0..<count).map { _ in try Fiber(stack: bytes) { _ in } }
      for fiber in fibers { try fiber.destroy() }
      #expect(cco_has_surplus(1024))
      // The first call learns what is used; the second one trims what was not used since.
      _ = cco_trim_surplus(1024)
      _ = cco_trim_surplus(1024)
      #expect(cco_stacks().pooled_dirty == UInt64(kept))
      #expect(!cco_has_surplus(1024))
    }
  }

  @Test("Trimming does not affect contexts in use, and trimmed stacks can be used again")
  func inUse() async {
    await #expect(processExitsWith: .success) {
      let count = TrimTests.count
      let fibers = try (0..<count).map { index in
        try Fiber(stack: 64 << 10) { fiber in
          let sum = Machine.descend(100)
          fiber.suspend(index)
          fiber.suspend(index + sum)
        }
      }
      for (index, fiber) in fibers.enumerated() { #expect(try fiber.resume() == index) }
      let parked = stride(from: 0, to: count, by: 2).map { fibers[$0] }
      let leaving = stride(from: 1, to: count, by: 2).map { fibers[$0] }
      for fiber in leaving {
        try fiber.resume()
        try fiber.resume()
        try fiber.destroy()
      }
      #expect(cco_trim(0) >= leaving.count)
      for fiber in leaving { #expect(!Machine.isResident(fiber.context)) }
      for fiber in parked { #expect(Machine.isResident(fiber.context)) }
      // Every stack between them is handed out again, and works.
      let again = try (0..<leaving.count).map { index in
        try Fiber(stack: 64 << 10) { fiber in fiber.suspend(index + Machine.descend(50)) }
      }
      #expect(Set(again.map(\.context)) == Set(leaving.map(\.context)))
      for (index, fiber) in again.enumerated() { #expect(try fiber.resume() == index + 51) }
      for (index, fiber) in parked.enumerated() { #expect(try fiber.resume() == index * 2 + 101) }
      for fiber in again + parked {
        try fiber.resume()
        try fiber.destroy()
      }
    }
  }

  @Test("Guards survive trimming")
  func guards() async {
    let died = await #expect(
      processExitsWith: .overflow,
      observing: [\.standardErrorContent]
    ) {
      _ = try onThread {
        let fibers = try (0..<8).map { _ in try Fiber(stack: 64 << 10) { _ in } }
        for fiber in fibers { try fiber.destroy() }
        precondition(cco_trim(0) >= 8)
        let fiber = try Fiber(stack: 64 << 10) { _ in _ = Machine.descend(1 << 24) }
        try fiber.resume()
      }
    }
    #expect(died?.lastWords.contains("overflowed its stack of 64 KiB") == true)
  }

  @Test("Threads may trim while others create and destroy")
  func whileInUse() throws {
    let rounds = Machine.isSanitized ? 200 : 3000
    let failures = try concurrently(threads: 4) { thread in
      var failures = 0
      for round in 0..<rounds {
        let fibers = try (0..<4).map { index in
          try Fiber(stack: 16 << 10) { fiber in fiber.suspend(thread * 1_000_000 + round * 10 + index) }
        }
        for (index, fiber) in fibers.enumerated() {
          if try fiber.resume() != thread * 1_000_000 + round * 10 + index { failures += 1 }
        }
        for fiber in fibers {
          try fiber.resume()
          try fiber.destroy()
        }
        if thread == 0 { cco_trim(round % 3) }
      }
      return failures
    }
    #expect(failures == [0, 0, 0, 0])
  }
}
