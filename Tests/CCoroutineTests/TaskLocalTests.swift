import CCoroutine
import CCoroutineRuntime
import Testing

private enum Request {
  @TaskLocal static var user: String?
  @TaskLocal static var depth = 0
}

/// Returns the values that two contexts and their thread see while both are parked inside a binding of a user.
private func interleave() throws -> (first: [String?], second: [String?], thread: [String?]) {
  var first: [String?] = []
  var second: [String?] = []
  var thread: [String?] = []
  func body(_ name: String, _ note: @escaping (String?) -> Void) -> (Fiber) -> Void {
    { fiber in
      note(Request.user)
      Request.$user.withValue(name) {
        note(Request.user)
        fiber.suspend()
        note(Request.user)
      }
      note(Request.user)
    }
  }
  let a = try Fiber(body("ann") { first.append($0) })
  let b = try Fiber(body("bob") { second.append($0) })
  // Resumed in the order of a stack, so that without the mitigation values are mixed but the process does not abort.
  for fiber in [a, b, b, a] {
    try fiber.resume()
    thread.append(Request.user)
  }
  try a.destroy()
  try b.destroy()
  return (first, second, thread)
}

@Suite("Task-local values")
struct TaskLocalTests {
  @Test("A binding is seen by the context that made it and by nobody else")
  func isolation() throws {
    let seen = try onThread { try interleave() }
    #expect(seen.first == [nil, "ann", "ann", nil])
    #expect(seen.second == [nil, "bob", "bob", nil])
    #expect(seen.thread == [nil, nil, nil, nil])
  }

  @Test("Without the mitigation one context sees another's binding, and so does the thread")
  func withoutTheCure() async {
    await #expect(processExitsWith: .success) {
      precondition(cco_disable(CCO_MITIGATION_TASK_LOCALS.rawValue))
      let seen = try onThread { try interleave() }
      #expect(seen.second == ["ann", "bob", "bob", "ann"])
      #expect(seen.thread == ["ann", "bob", "ann", nil])
    }
  }

  @Test("Bindings may end in any order")
  func anyOrder() throws {
    try onThread {
      let fibers = try (0..<10).map { index in
        try Fiber { fiber in
          Request.$user.withValue("user \(index)") {
            Request.$depth.withValue(index) {
              fiber.suspend()
              #expect(Request.depth == index)
            }
            fiber.suspend()
            #expect(Request.user == "user \(index)")
          }
        }
      }
      for fiber in fibers { try fiber.resume() }
      for fiber in fibers.shuffled(using: &seeded) { try fiber.resume() }
      for fiber in fibers.shuffled(using: &seeded) { try fiber.resume() }
      #expect(Request.user == nil)
      for fiber in fibers { try fiber.destroy() }
    }
  }

  @Test("A thousand contexts keep their bindings on changing threads, and a thread keeps its own")
  func acrossThreads() throws {
    let carousel = Carousel(threads: 3)
    defer { carousel.stop() }
    var wrong = 0
    let fibers = try (0..<1000).map { index in
      try Fiber { fiber in
        Request.$user.withValue("user \(index)") {
          for step in 0..<5 {
            fiber.suspend()
            if Request.user != "user \(index)" { wrong += 1 }
            Request.$depth.withValue(step) {
              fiber.suspend()
              if Request.depth != step || Request.user != "user \(index)" { wrong += 1 }
            }
          }
        }
        if Request.user != nil { wrong += 1 }
      }
    }
    for round in 0..<11 {
      for start in 0..<10 {
        try carousel.next {
          try Request.$user.withValue("thread") {
            for index in stride(from: start, to: 1000, by: 10) {
              try fibers[index].resume()
              if Request.user != "thread" { wrong += 1 }
            }
          }
        }
      }
      if round < 10 { #expect(fibers.allSatisfy { $0.state == CCO_SUSPENDED }) }
    }
    #expect(fibers.allSatisfy { $0.state == CCO_FINISHED })
    #expect(wrong == 0)
    for fiber in fibers { try fiber.destroy() }
  }

  @Test("A context's binding is not the binding of the next body on its stack")
  func nextBody() throws {
    try onThread {
      var fiber = try Fiber { fiber in Request.$user.withValue("first") { _ = fiber.suspend() } }
      try fiber.resume()
      try fiber.resume()
      var seen: String? = "nobody asked"
      try fiber.replaceBody { _ in seen = Request.user }
      try fiber.resume()
      #expect(seen == nil)
      try fiber.destroy()
    }
  }
}

/// A random number generator with a fixed seed.
private struct Seeded: RandomNumberGenerator {
  var state: UInt64
  mutating func next() -> UInt64 {
    state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
    return state ^ (state >> 33)
  }
}

// Sound because only one test uses it, on one thread.
nonisolated(unsafe) private var seeded = Seeded(state: 20_250_914)
