import CCoroutine
import CCoroutineRuntime
import Glibc
import Testing

/// An object whose properties are accessed dynamically: Swift checks at run time that no two modifications overlap.
private final class Shared {
  var value = 0
  var other = 0
}

@inline(never)
private func modify(_ variable: inout Int, _ body: () -> Void) {
  variable += 1
  body()
  variable += 1
}

/// Two contexts on one thread; the first is parked inside a modification of the property that the second modifies.
private func overlap() throws {
  let object = Shared()
  let first = try Fiber { fiber in modify(&object.value) { fiber.suspend() } }
  let second = try Fiber { fiber in modify(&object.value) { fiber.suspend() } }
  try first.resume()
  try second.resume()
  try first.resume()
  try second.resume()
  precondition(first.state == CCO_FINISHED && second.state == CCO_FINISHED)
  // The thread's own list of accesses is unchanged.
  modify(&object.value) {}
  try first.destroy()
  try second.destroy()
}

/// A context that is parked inside a modification moves between threads, while each thread modifies the object too.
private func migrate(times: Int, insideOfAnAccess: Bool = true) throws {
  let carousel = Carousel(threads: 3)
  defer { carousel.stop() }
  let object = Shared()
  let fiber = try Fiber { fiber in
    for _ in 0..<times {
      modify(&object.value) {
        modify(&object.other) { fiber.suspend() }
      }
    }
  }
  while fiber.state != CCO_FINISHED {
    try carousel.next {
      if insideOfAnAccess {
        modify(&object.value) { _ = try? fiber.resume() }
      } else {
        try fiber.resume()
        modify(&object.value) {}
      }
      modify(&object.other) {}
    }
  }
  try fiber.destroy()
}

/// A body that finishes inside another context's access does not corrupt the list of accesses.
private func nested() throws {
  let object = Shared()
  var finished = 0
  for _ in 0..<100 {
    let fiber = try Fiber { fiber in
      modify(&object.other) { fiber.suspend() }
      finished += 1
    }
    try fiber.resume()
    modify(&object.value) { _ = try? fiber.resume() }
    try fiber.destroy()
  }
  precondition(finished == 100)
}

@Suite("Exclusive access")
struct AccessSetTests {
  @Test("Two contexts may be parked inside modifications of the same property")
  func overlapping() throws { try onThread { try overlap() } }

  @Test("Without the mitigation the second context's access ends the process")
  func withoutTheCure() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      precondition(cco_disable(CCO_MITIGATION_ACCESSES.rawValue))
      try onThread { try overlap() }
    }
    #expect(died?.lastWords.contains("imultaneous access") == true)
  }

  @Test("Without the list's place Swift's own functions do it")
  func byFunction() async {
    await #expect(processExitsWith: .success) {
      precondition(cco_disable(CCO_MITIGATION_ACCESS_OFFSET.rawValue))
      try onThread { try overlap() }
      try onThread { try nested() }
      // With Swift's functions the resumer's accesses conflict with those of the resumed context, as in a call.
      try migrate(times: 200, insideOfAnAccess: false)
      #expect(cco_mitigations() & CCO_MITIGATION_ACCESS_OFFSET.rawValue == 0)
      #expect(cco_mitigations() & CCO_MITIGATION_ACCESSES.rawValue != 0)
      #expect(String(cString: cco_report()).contains("swift_task_exit/enterThreadLocalContext"))
    }
  }

  @Test("A context parked inside modifications moves between threads ten thousand times")
  func migration() throws { try migrate(times: 10_000) }

  @Test("A modification around a resume and one inside the context do not conflict")
  func nestedModifications() throws { try onThread { try nested() } }

  @Test("The checker still finds a real overlap inside one context")
  func realOverlap() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try onThread {
        let object = Shared()
        let fiber = try Fiber { fiber in
          modify(&object.value) {
            fiber.suspend()
            modify(&object.value) {}
          }
        }
        try fiber.resume()
        try fiber.resume()
      }
    }
    #expect(died?.lastWords.contains("imultaneous access") == true)
  }
}
