import CCoroutine
import CCoroutineRuntime
import Testing

private enum Request {
  @TaskLocal static var user: String?
}

/// Carries a context into a Task's closure.
// Sound because one thread at a time uses the value.
private struct Carried<Value>: @unchecked Sendable {
  let value: Value
  init(_ value: Value) { self.value = value }
}

/// Identifies the caller's current Task; 0 if there is none.
@inline(never)
private func currentTask() -> Int { Int(bitPattern: cco_current_task()) }

/// Whether the caller is part of a Swift job.
@inline(never)
private func isRunningJob() -> Bool {
  UnsafePointer<UInt>(bitPattern: Int(bitPattern: cco_thread_pointer()) + cco_facts.state_offset.1)!.pointee != 0
}

/// Runs `body` as the synchronous part of a Task.
private func immediately(_ body: @escaping () -> Void) {
  let body = Carried(body)
  Task.immediate { body.value() }
}

/// Returns the current Tasks of two contexts that are parked inside a Task at the same time, each with memory of its
/// Task, and those of a third context and the thread.
private func interleave() throws -> (own: [[Int]], others: [Int]) {
  var own: [[Int]] = [[], []]
  var others: [Int] = []
  let tasks = try (0..<2).map { index in
    try Fiber { fiber in
      own[index].append(currentTask())
      immediately {
        own[index].append(currentTask())
        Request.$user.withValue("user \(index)") {
          fiber.suspend()
          own[index].append(Request.user == "user \(index)" ? currentTask() : -1)
        }
        fiber.suspend()
        own[index].append(currentTask())
      }
      own[index].append(currentTask())
    }
  }
  let other = try Fiber { fiber in
    for _ in 0..<3 {
      others.append(currentTask())
      fiber.suspend()
    }
  }
  for _ in 0..<3 {
    for fiber in tasks + [other] {
      try fiber.resume()
      others.append(currentTask())
    }
  }
  try other.resume()
  for fiber in tasks + [other] { try fiber.destroy() }
  return (own, others)
}

@Suite("The current Task")
struct TaskTests {
  @Test("Contexts that are parked inside a Task keep it, and no other context sees it")
  func isolation() throws {
    let (own, others) = try onThread { try interleave() }
    for seen in own {
      #expect(seen.count == 5)
      #expect(seen.first == 0 && seen.last == 0)
      #expect(seen[1] != 0 && seen[1] == seen[2] && seen[2] == seen[3])
    }
    #expect(own[0][1] != own[1][1])
    #expect(others == Array(repeating: 0, count: others.count))
  }

  @Test("Without the mitigation the process ends, since one Task's memory is freed by another")
  func withoutTheCure() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      precondition(cco_disable(CCO_MITIGATION_TASKS.rawValue))
      _ = try onThread { try interleave() }
    }
    #expect(result?.lastWords.contains("freed pointer was not the last allocation") == true)
  }

  @Test("Without the mitigation another context sees a foreign Task")
  func foreignTask() async {
    await #expect(processExitsWith: .success) {
      precondition(cco_disable(CCO_MITIGATION_TASKS.rawValue))
      try onThread {
        var seen = 0
        let inside = try Fiber { fiber in immediately { _ = fiber.suspend() } }
        let other = try Fiber { _ in seen = currentTask() }
        try inside.resume()
        try other.resume()
        #expect(seen != 0)
      }
    }
  }

  @Test("A Task's synchronous part may go on on other threads, and leaves each thread as it found it")
  func acrossThreads() throws {
    let carousel = Carousel(threads: 3)
    defer { carousel.stop() }
    var wrong = 0
    let fibers = try (0..<100).map { index in
      try Fiber { fiber in
        for round in 0..<10 {
          immediately {
            let mine = currentTask()
            if mine == 0 { wrong += 1 }
            Request.$user.withValue("user \(index)") {
              fiber.suspend()
              immediately {
                let inner = currentTask()
                fiber.suspend()
                if currentTask() != inner || inner == mine { wrong += 1 }
              }
              if currentTask() != mine || Request.user != "user \(index)" { wrong += 1 }
            }
            if round % 2 == 0 { fiber.suspend() }
            if currentTask() != mine { wrong += 1 }
          }
          if currentTask() != 0 || isRunningJob() { wrong += 1 }
        }
      }
    }
    while fibers.contains(where: { $0.state != CCO_FINISHED }) {
      for start in 0..<10 {
        try carousel.next {
          immediately {
            let mine = currentTask()
            for index in stride(from: start, to: 100, by: 10) where fibers[index].state != CCO_FINISHED {
              _ = try? fibers[index].resume()
              if currentTask() != mine || Request.user != nil { wrong += 1 }
            }
          }
          if currentTask() != 0 || isRunningJob() { wrong += 1 }
        }
      }
    }
    #expect(wrong == 0)
    for fiber in fibers { try fiber.destroy() }
  }

  @Test("A context that is resumed inside a Task starts in none, and its resumer keeps its own")
  func resumedInside() throws {
    try onThread {
      var seen: [Int] = []
      var mine: [Int] = []
      var users: [String?] = []
      let fiber = try Fiber { fiber in
        for _ in 0..<2 {
          seen.append(currentTask())
          users.append(Request.user)
          fiber.suspend()
        }
      }
      for _ in 0..<2 {
        immediately {
          Request.$user.withValue("consumer") {
            let before = currentTask()
            _ = try? fiber.resume()
            mine.append(before != 0 && currentTask() == before && Request.user == "consumer" ? 1 : 0)
          }
        }
      }
      try fiber.resume()
      #expect(seen == [0, 0])
      #expect(users == [nil, nil])
      #expect(mine == [1, 1])
      try fiber.destroy()
    }
  }
}
