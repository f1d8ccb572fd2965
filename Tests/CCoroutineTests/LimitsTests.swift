import CCoroutine
import Glibc
import Testing

@Suite("Many contexts, and the kernel's limits")
struct LimitsTests {
  /// A million if CO_STRESS is 10.
  ///
  /// ThreadSanitizer knows about 8,000 fibers.
  static let many =
    Machine.hasThreadSanitizer ? 1000 : Machine.hasAddressSanitizer ? 10_000 : min(Machine.stress, 10) * 100_000

  @Test("A hundred thousand parked contexts, all guarded, live in a few mappings and a page each")
  func manyContexts() async {
    await #expect(processExitsWith: .success) {
      let count = LimitsTests.many
      cco_start()
      let mappings = Machine.mappings
      let resident = Machine.memory.resident
      var fibers: [Fiber] = []
      fibers.reserveCapacity(count)
      for index in 0..<count {
        try fibers.append(Fiber(stack: 64 << 10) { fiber in fiber.suspend(fiber.suspend(index)) })
      }
      var wrong = 0
      for index in 0..<count where try fibers[index].resume() != index { wrong += 1 }
      if cco_stacks().guard == CCO_GUARD_MARKERS, !Machine.isSanitized {
        #expect(Machine.mappings - mappings < 64)
        // The page, the closure and this test's own data for each context.
        #expect((Machine.memory.resident - resident) / count < 4096 + 512)
      }
      for index in 0..<count where try fibers[index].resume(index + 1) != index + 1 { wrong += 1 }
      #expect(wrong == 0)
      for fiber in fibers {
        try fiber.resume()
        try fiber.destroy()
      }
      #expect(cco_stacks().peak >= count)
      #expect(cco_trim(0) >= count)
      #expect(cco_stacks().mapped_bytes < 8 << 20)
    }
  }

  static let canReachTheMapLimit = !Machine.isSanitized && Machine.mostMappings <= 300_000

  @Test(
    "Without guard markers, vm.max_map_count is reported by its name, and freeing stacks makes room again",
    .enabled(if: canReachTheMapLimit, "the limit is too high to be reached, or a sanitizer needs mappings of its own")
  )
  func mapLimit() async {
    await #expect(processExitsWith: .success) {
      precondition(cco_disable(CCO_MITIGATION_GUARD_MARKERS.rawValue))
      let most = Machine.mostMappings
      var contexts: [UnsafeMutablePointer<cco_context>] = []
      contexts.reserveCapacity(most)
      var status = CCO_OK
      while status == CCO_OK, contexts.count < most {
        var context: UnsafeMutablePointer<cco_context>?
        status = cco_create(16 << 10, { _, _ in nil }, nil, &context)
        if let context { contexts.append(context) }
      }
      let reached = contexts.count
      for context in contexts { precondition(cco_destroy(context) == CCO_OK) }
      cco_trim(0)
      #expect(status == CCO_OUT_OF_MAPS)
      #expect(reached > most / 2 - 2000)
      #expect(cco_stacks().guard == CCO_GUARD_MPROTECT)
      #expect(String(cString: cco_report()).contains("vm.max_map_count"))
      let fiber = try Fiber(stack: 16 << 10) { fiber in fiber.suspend(Machine.descend(20)) }
      #expect(try fiber.resume() == 21)
      try fiber.resume()
      try fiber.destroy()
    }
  }

  @Test(
    "Where address space is limited, a stack is refused as out of memory, and freeing makes room again",
    .enabled(if: !Machine.isSanitized, "a sanitizer needs address space of its own"),
    arguments: ["RLIMIT_AS": Int32(RLIMIT_AS.rawValue), "RLIMIT_DATA": Int32(RLIMIT_DATA.rawValue)]
  )
  func addressSpaceLimit(_ name: String, _ resource: Int32) async {
    await #expect(processExitsWith: .success) { [name, resource] in
      cco_start()
      var limit = rlimit()
      getrlimit(resource, &limit)
      // Far more than another thread of the process may map meanwhile.
      limit.rlim_cur = rlim_t(Machine.memory.size + (1 << 30))
      precondition(setrlimit(resource, &limit) == 0)
      var fibers: [Fiber] = []
      var refusal: Fiber.Refusal?
      while refusal == nil, fibers.count < 1_000 {
        do throws(Fiber.Refusal) {
          try fibers.append(Fiber(stack: 16 << 20) { fiber in fiber.suspend(7) })
        } catch {
          refusal = error
        }
      }
      #expect(refusal?.status == CCO_OUT_OF_MEMORY)
      let isNamed = (refusal?.description ?? "").contains("(\(name))")
      #expect(isNamed)
      #expect(fibers.count >= 48)
      for fiber in fibers { #expect(try fiber.resume() == 7) }
      for fiber in fibers {
        try fiber.resume()
        try fiber.destroy()
      }
      cco_trim(0)
      let next = try Fiber(stack: 16 << 20) { _ in }
      try next.destroy()
    }
  }

  @Test("In a process that locks its memory, stacks take no more than what is touched")
  func locked() async {
    await #expect(processExitsWith: .success) {
      // Refused without the right to lock so much.
      guard mlockall(MCL_FUTURE) == 0 else { return }
      let fibers = try (0..<100).map { _ in try Fiber(stack: 512 << 10) { fiber in fiber.suspend() } }
      for fiber in fibers { try fiber.resume() }
      // Of 128 pages each. What else the process maps meanwhile is resident, so the whole process says nothing.
      for fiber in fibers {
        let pages = stride(from: 0, to: 512 << 10, by: Machine.page)
        #expect(pages.count { Machine.isResident(fiber.context.pointee.low + $0) } < 16)
      }
      for fiber in fibers {
        try fiber.resume()
        try fiber.destroy()
      }
    }
  }
}
