import CCoroutine
import Testing

@Suite("A context's states")
struct StatesTests {
  @Test("A context is ready, running, suspended and finished, in this order")
  func lifeOfAContext() throws {
    var seen: [cco_state] = []
    let fiber = try Fiber { fiber in
      seen.append(fiber.state)
      fiber.suspend()
      seen.append(fiber.state)
    }
    seen.append(fiber.state)
    try fiber.resume()
    seen.append(fiber.state)
    try fiber.resume()
    seen.append(fiber.state)
    #expect(seen == [CCO_READY, CCO_RUNNING, CCO_SUSPENDED, CCO_RUNNING, CCO_FINISHED])
    try fiber.destroy()
  }

  @Test("Values cross in both directions, and the first resume's value is not mistaken for an answer")
  func valuesCross() throws {
    var received: [Int] = []
    let fiber = try Fiber { fiber in
      for step in 1...1000 { received.append(fiber.suspend(step)) }
    }
    var sent: [Int] = []
    var answers: [Int] = []
    try answers.append(fiber.resume(-7))
    for step in 1...1000 {
      sent.append(step * 3)
      try answers.append(fiber.resume(step * 3))
    }
    #expect(received == sent)
    #expect(answers == Array(1...1000) + [0])
    try fiber.destroy()
  }

  @Test("A finished or a running context is not resumed")
  func resumeOfWhatCannotBeResumed() throws {
    var inside: cco_status?
    let fiber = try Fiber { fiber in
      var answer: UnsafeMutableRawPointer?
      inside = cco_resume(fiber.context, nil, &answer)
    }
    try fiber.resume()
    #expect(inside == CCO_NOT_RESUMABLE)
    var answer: UnsafeMutableRawPointer?
    #expect(cco_resume(fiber.context, nil, &answer) == CCO_NOT_RESUMABLE)
    #expect(String(cString: cco_status_message(CCO_NOT_RESUMABLE)).contains("running or finished"))
    try fiber.destroy()
  }

  @Test("A context can be suspended only by itself")
  func suspendOfWhatDoesNotRun() throws {
    var answer: UnsafeMutableRawPointer?
    var outerFromInner: cco_status?
    let outer = try Fiber { outer in
      let inner = try! Fiber { _ in
        // Both contexts are running, but this is not the outer one's stack.
        var answer: UnsafeMutableRawPointer?
        outerFromInner = cco_suspend(outer.context, nil, &answer)
      }
      try! inner.resume()
      try! inner.destroy()
    }
    #expect(cco_suspend(outer.context, nil, &answer) == CCO_NOT_RUNNING)
    try outer.resume()
    #expect(outerFromInner == CCO_NOT_RUNNING)
    #expect(cco_suspend(outer.context, nil, &answer) == CCO_NOT_RUNNING)
    try outer.destroy()
  }

  @Test("A stack with live frames is not freed")
  func liveFramesAreKept() throws {
    var insideDestroy: cco_status?
    let fiber = try Fiber { fiber in
      insideDestroy = cco_destroy(fiber.context)
      fiber.suspend()
    }
    try fiber.resume()
    #expect(insideDestroy == CCO_HAS_LIVE_FRAMES)
    #expect(cco_destroy(fiber.context) == CCO_HAS_LIVE_FRAMES)
    #expect(String(cString: cco_status_message(CCO_HAS_LIVE_FRAMES)).contains("resume it with an error first"))
    try fiber.resume()
    try fiber.destroy()
  }

  @Test("A stack runs a new body when the last one has finished, or has never run")
  func newBodies() throws {
    var order: [Int] = []
    var fiber = try Fiber { _ in order.append(0) }
    try fiber.replaceBody { _ in order.append(1) }
    try fiber.resume()
    for body in 2...50 {
      try fiber.replaceBody { fiber in
        order.append(body)
        fiber.suspend()
        order.append(-body)
      }
      #expect(fiber.state == CCO_READY)
      try fiber.resume()
      try fiber.resume()
    }
    #expect(order == [1] + (2...50).flatMap { [$0, -$0] })
    try fiber.destroy()
  }

  @Test("Contexts resume contexts, and each comes back to its own resumer")
  func nesting() throws {
    func nest(_ depth: Int) -> Int {
      guard depth > 0 else { return 0 }
      var below = 0
      let inner = try! Fiber { fiber in
        fiber.suspend(depth)
        below = nest(depth - 1)
        fiber.suspend(depth * 10)
      }
      let first = try! inner.resume()
      let second = try! inner.resume()
      try! inner.resume()
      try! inner.destroy()
      return below + first + second
    }
    #expect(nest(20) == (1...20).reduce(0, +) * 11)
  }

  @Test("Every status has its own message")
  func sentences() {
    let all = [
      CCO_OK, CCO_STACK_TOO_LARGE, CCO_OUT_OF_MAPS, CCO_OUT_OF_MEMORY, CCO_NOT_RESUMABLE, CCO_NOT_RUNNING,
      CCO_HAS_LIVE_FRAMES,
    ]
    #expect(Set(all.map { String(cString: cco_status_message($0)) }).count == all.count)
    #expect(String(cString: cco_status_message(CCO_OUT_OF_MAPS)).contains("vm.max_map_count"))
    #expect(String(cString: cco_status_message(CCO_OUT_OF_MEMORY)).contains("RLIMIT_AS"))
    #expect(String(cString: cco_status_message(cco_status(rawValue: 99))) == "unknown status")
  }
}
