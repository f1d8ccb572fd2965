import Coroutine
import Dispatch
import Testing

private enum Request {
  @TaskLocal static var user = "nobody"
  @TaskLocal static var depth = 0
}

/// Values that libraries keep in task-locals (loggers, spans, identities) must never leak into another coroutine.
@Suite("Task-locals in coroutines", .timeLimit(.minutes(10)))
struct TaskLocalTests {
  @Test func `two coroutines on one queue keep their own task-locals across a yield`() async throws {
    let seen = try await onSerialQueue {
      let jobs = ["alice", "bob"].map { user in
        co_launch {
          var seen = [Request.user]
          try Request.$user.withValue(user) {
            for _ in 0..<3 {
              try co_yield()
              seen.append(Request.user)
            }
          }
          try co_yield()
          return seen + [Request.user]
        }
      }
      return try jobs.map { try $0.join() }
    }
    #expect(seen == ["alice", "bob"].map { ["nobody", $0, $0, $0, "nobody"] })
  }

  @Test func `bindings may end in another order than they began`() async throws {
    let seen = try await onSerialQueue {
      let (first, second) = (Gate(), Gate())
      let a = co_launch {
        try Request.$user.withValue("a") {
          try first.pass()
          return Request.user
        }
      }
      let b = co_launch {
        try Request.$user.withValue("b") {
          try second.pass()
          return Request.user
        }
      }
      try co_yield()
      first.open()
      let one = try a.join()
      second.open()
      return [one, try b.join(), Request.user]
    }
    #expect(seen == ["a", "b", "nobody"])
  }

  @Test func `the thread has no binding while a coroutine is parked in one`() async throws {
    let queue = taggedQueue("thread")
    let gate = Gate()
    let parked = (0..<3).map { n in
      co_launch(on: queue) {
        try Request.$user.withValue("parked \(n)") {
          try gate.pass()
          return Request.user
        }
      }
    }
    let seen = try await onBlock(of: queue) { Request.user }
    gate.open()
    #expect(seen == "nobody")
    for (n, job) in parked.enumerated() { #expect(try await job.value == "parked \(n)") }
    #expect(try await onBlock(of: queue) { Request.user } == "nobody")
  }

  @Test func `a block's binding does not reach the coroutines that it wakes`() async throws {
    let queue = taggedQueue("block")
    let gate = Gate()
    let job = co_launch(on: queue) {
      try gate.pass()
      return Request.user
    }
    try await onBlock(of: queue) { Request.$user.withValue("block") { gate.open() } }
    #expect(try await job.value == "nobody")
  }

  @Test func `bindings survive moves between threads, a hundred coroutines at once`() async throws {
    let queues = (0..<4).map { taggedQueue("\($0)") }
    let jobs = (0..<100).map { n in
      co_launch(on: queues[n % 4]) {
        try Request.$user.withValue("user \(n)") {
          try Request.$depth.withValue(n) {
            var strangers = 0
            for hop in 0..<50 {
              try co_switch(to: queues[(n + hop) % 4])
              if Request.user != "user \(n)" || Request.depth != n { strangers += 1 }
              try co_yield()
              if Request.user != "user \(n)" || Request.depth != n { strangers += 1 }
            }
            return strangers
          }
        }
      }
    }
    for job in jobs { #expect(try await job.value == 0) }
  }

  @Test func `async code that is awaited in a binding sees it, and its own bindings stay inside`() async throws {
    let seen = try await onCoroutine {
      try Request.$user.withValue("alice") {
        let inside = try co_await {
          let first = Request.user
          return await Request.$user.withValue("bob") {
            await Task.yield()
            return [first, Request.user]
          }
        }
        return inside + [Request.user]
      }
    }
    #expect(seen == ["alice", "bob", "alice"])
  }

  @Test func `a cancelled coroutine ends its bindings during unwinding`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch {
        let thrown = outcome { try Request.$user.withValue("bound") { try waitForCancellation() } }
        return [thrown, Request.user]
      }
      try co_yield()
      job.cancel()
      return try job.join() + [Request.user]
    }
    #expect(seen == ["CancellationError", "nobody", "nobody"])
  }
}
