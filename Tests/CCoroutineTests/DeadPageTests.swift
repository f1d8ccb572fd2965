import CCoroutine
import CCoroutineRuntime
import Glibc
import Testing

/// Pages of the stack of a parked fiber.
private struct Pages {
  /// Those with memory below the page that the saved stack pointer is in, and the others.
  let dead: Int
  let live: Int
  let used: Int

  init(_ fiber: Fiber) {
    let page = UInt(Machine.page)
    let low = UInt(bitPattern: fiber.context.pointee.low)
    let pointer = UInt(bitPattern: fiber.context.pointee.parked.stack) / page * page
    let end = (UInt(bitPattern: fiber.context) / page + 1) * page
    func resident(_ range: Range<UInt>) -> Int {
      stride(from: range.lowerBound, to: range.upperBound, by: Int(page)).count {
        Machine.isResident(UnsafeRawPointer(bitPattern: $0)!)
      }
    }
    dead = resident(low..<pointer)
    live = resident(pointer..<end)
    used = Int((end - pointer) / page)
  }
}

private func dropDeadPages(of fibers: [Fiber]) -> Int {
  let held = fibers.map { UnsafePointer($0.context) }
  return held.withUnsafeBufferPointer { cco_drop_dead_pages($0.baseAddress!, $0.count) }
}

/// A fiber that goes `levels` deep, parks, goes deep again, and sends the sum of both.
private func deepFiber(_ levels: Int, stack: Int = 64 << 10) throws -> Fiber {
  try Fiber(stack: stack) { fiber in
    let first = Machine.descend(levels)
    fiber.suspend(first)
    fiber.suspend(first + Machine.descend(levels))
  }
}

@Suite("Dead pages", .enabled(if: !Machine.isSanitized))
struct DeadPageTests {
  @Test("Pages below the stack pointer go back, those of frames and the stacks beside stay")
  func drop() throws {
    // More than one call takes, on neighbours and on stacks of two sizes.
    let fibers = try (0..<40).map { try deepFiber(100, stack: $0 % 2 == 0 ? 64 << 10 : 512 << 10) }
    for fiber in fibers { #expect(try fiber.resume() == 101) }
    let before = fibers.map(Pages.init)
    #expect(before.allSatisfy { $0.dead >= 2 })
    let dropped = fibers.indices.filter { $0 % 4 < 2 }
    #expect(dropDeadPages(of: dropped.map { fibers[$0] }) == dropped.count)
    for (index, fiber) in fibers.enumerated() {
      let after = Pages(fiber)
      #expect(after.live == before[index].live)
      #expect(after.dead == (index % 4 < 2 ? 0 : before[index].dead))
    }
    for fiber in fibers {
      #expect(try fiber.resume() == 202)
      try fiber.resume()
      try fiber.destroy()
    }
  }

  @Test("The guard below stays")
  func guards() async {
    await #expect(processExitsWith: .overflow) {
      let fiber = try deepFiber(100)
      try fiber.resume()
      precondition(dropDeadPages(of: [fiber]) == 1)
      fiber.context.pointee.low.advanced(by: -1).pointee = 1
    }
  }

  @Test("A stack whose flow is parked on another one, which no caller leads to, is left alone")
  func elsewhere() throws {
    let inner = try deepFiber(100)
    let outer = try Fiber { fiber in
      _ = Machine.descend(100)
      // The saved stack pointer of the outer one is on the inner stack, as that of a coroutine in a generator's body.
      fiber.suspend()
    }
    try outer.resume()
    try inner.resume()
    let (own, caller) = (outer.context.pointee.parked.stack, inner.context.pointee.caller)
    outer.context.pointee.parked.stack = inner.context.pointee.parked.stack
    inner.context.pointee.caller = nil
    #expect(dropDeadPages(of: [outer]) == 1)
    (outer.context.pointee.parked.stack, inner.context.pointee.caller) = (own, caller)
    #expect(Pages(inner).dead == 0 && Pages(outer).dead >= 2)
    for fiber in [inner, outer] {
      try fiber.resume()
      if fiber.state == CCO_SUSPENDED { try fiber.resume() }
      try fiber.destroy()
    }
  }
}
