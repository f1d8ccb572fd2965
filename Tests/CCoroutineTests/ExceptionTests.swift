import CCoroutine
import CExceptions
import Testing

/// Suspends the fiber whose context is passed.
private let suspendFiber: cexceptions_suspend = { context in
  Fiber(context: context!.assumingMemoryBound(to: cco_context.self)).suspend()
}

@Suite("C++ exceptions")
struct ExceptionTests {
  @Test("A catch block that suspends throws its own exception again")
  func rethrow() throws {
    try onThread {
      let count = 50
      var wrong = 0
      let fibers = try (0..<count).map { index in
        try Fiber { fiber in
          for round in 0..<50 {
            let number = index * 50 + round
            if cexceptions_rethrown(Int32(number), 1, suspendFiber, fiber.context) != number { wrong += 1 }
          }
        }
      }
      for _ in 0...50 {
        for fiber in fibers {
          try fiber.resume()
          if cexceptions_is_handling() { wrong += 1 }
        }
      }
      #expect(fibers.allSatisfy { $0.state == CCO_FINISHED })
      #expect(wrong == 0)
      for fiber in fibers { try fiber.destroy() }
    }
  }

  @Test("A destructor that suspends during unwinding counts only its own context's exceptions")
  func unwinding() throws {
    try onThread {
      var wrong: Int32 = 0
      let fibers = try (0..<20).map { index in
        try Fiber { fiber in
          for _ in 0..<5 { wrong += cexceptions_miscounted(Int32(index % 3), suspendFiber, fiber.context) }
        }
      }
      while fibers.contains(where: { $0.state != CCO_FINISHED }) {
        for fiber in fibers where fiber.state != CCO_FINISHED {
          try fiber.resume()
          wrong += cexceptions_uncaught()
        }
      }
      #expect(wrong == 0)
      for fiber in fibers { try fiber.destroy() }
    }
  }

  @Test("Exceptions move with their context to other threads, also nested exceptions")
  func acrossThreads() throws {
    let carousel = Carousel(threads: 3)
    defer { carousel.stop() }
    var wrong: Int32 = 0
    let fibers = try (0..<100).map { index in
      try Fiber { fiber in
        for round in 0..<10 {
          let (outer, inner) = (Int32(index * 100 + round), Int32(index))
          if cexceptions_nested(outer, inner, suspendFiber, fiber.context) != outer + inner { wrong += 1 }
          wrong += cexceptions_miscounted(1, suspendFiber, fiber.context)
        }
      }
    }
    while fibers.contains(where: { $0.state != CCO_FINISHED }) {
      // The stride is not a multiple of the number of threads: each fiber runs on all of them.
      for start in 0..<10 {
        try carousel.next {
          for index in stride(from: start, to: 100, by: 10) where fibers[index].state != CCO_FINISHED {
            try fibers[index].resume()
            if cexceptions_is_handling() || cexceptions_uncaught() != 0 { wrong += 1 }
          }
        }
      }
    }
    #expect(wrong == 0)
    for fiber in fibers { try fiber.destroy() }
  }

  @Test("A context starts without the exception that its resumer handles, and the resumer keeps it")
  func resumerInside() throws {
    try onThread {
      // The thread suspends by resuming the context.
      var seen: [Bool] = []
      let fiber = try Fiber { fiber in
        while true {
          seen.append(cexceptions_is_handling())
          if fiber.suspend() == 1 { break }
        }
      }
      let resume: cexceptions_suspend = { context in
        _ = try! Fiber(context: context!.assumingMemoryBound(to: cco_context.self)).resume()
      }
      #expect(cexceptions_rethrown(7, 3, resume, fiber.context) == 7)
      #expect(cexceptions_miscounted(3, resume, fiber.context) == 0)
      #expect(seen == Array(repeating: false, count: 6))
      try fiber.resume(1)
      try fiber.destroy()
    }
  }

  @Test(
    "Without the mitigation one context throws another's exception",
    .enabled(if: !Machine.hasAddressSanitizer, "the exception that nobody catches then is a leak")
  )
  func withoutTheCure() async {
    await #expect(processExitsWith: .success) {
      precondition(cco_disable(CCO_MITIGATION_EXCEPTIONS.rawValue))
      try onThread {
        var caught: [Int32] = []
        let fibers = try (0..<2).map { index in
          try Fiber { fiber in caught.append(cexceptions_rethrown(Int32(index), 1, suspendFiber, fiber.context)) }
        }
        for fiber in fibers { try fiber.resume() }
        #expect(cexceptions_is_handling())
        // The other context is not resumed: its exception has been thrown by this one.
        try fibers[0].resume()
        #expect(caught == [1])
      }
    }
  }

  @Test("Without the mitigation a thread counts the exceptions of a context that unwinds")
  func countWithoutTheCure() async {
    await #expect(processExitsWith: .success) {
      precondition(cco_disable(CCO_MITIGATION_EXCEPTIONS.rawValue))
      try onThread {
        let fiber = try Fiber { fiber in _ = cexceptions_miscounted(1, suspendFiber, fiber.context) }
        try fiber.resume()
        #expect(cexceptions_uncaught() == 1)
        try fiber.resume()
        try fiber.destroy()
      }
    }
  }
}
