import Coroutine
import Testing

@Suite("Cancellation", .timeLimit(.minutes(10)))
struct CancellationTests {
  @Test func `throws CancellationError when no reason is given, else the reason`() async throws {
    let seen = try await onSerialQueue {
      let jobs = (0..<2).map { _ in co_launch { try waitForCancellation() } }
      try co_yield()
      jobs[0].cancel()
      jobs[1].cancel(Oops("reason"))
      return jobs.map { job in outcome { try job.join() } }
    }
    #expect(seen == ["CancellationError", "Oops(reason)"])
  }

  @Test func `the first reason wins, also when the first gave none`() async throws {
    let seen = try await onSerialQueue {
      let jobs = (0..<2).map { _ in co_launch { try waitForCancellation() } }
      try co_yield()
      jobs[0].cancel(Oops("first"))
      jobs[0].cancel(Oops("second"))
      jobs[1].cancel()
      jobs[1].cancel(Oops("second"))
      return jobs.map { job in outcome { try job.join() } }
    }
    #expect(seen == ["Oops(first)", "CancellationError"])
  }

  @Test func `is seen by isCancelled at once, and by the coroutine itself`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch {
        let before = co_isCancelled
        _ = outcome { try waitForCancellation() }
        return [before, co_isCancelled]
      }
      try co_yield()
      let before = job.isCancelled
      job.cancel()
      let after = job.isCancelled
      return [before, after] + (try job.join())
    }
    #expect(seen == [false, true, false, true])
  }

  @Test func `stays in force: every suspension throws until the body ends`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch {
        [
          outcome { try waitForCancellation() },
          outcome { try co_yield() },
          outcome { try co_delay(.milliseconds(1)) },
          outcome { try co_await(Promise.value(1)) },
          outcome { try co_checkCancelled() },
        ]
      }
      try co_yield()
      job.cancel(Oops("why"))
      return try job.join()
    }
    #expect(seen == Array(repeating: "Oops(why)", count: 5))
  }

  @Test func `a body that returns a value all the same has succeeded`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch {
        _ = outcome { try waitForCancellation() }
        return "value"
      }
      try co_yield()
      job.cancel()
      return [try job.join(), "\(job.isCancelled)"]
    }
    #expect(seen == ["value", "true"])
  }

  @Test func `a body that throws an error of its own fails with that`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch { () throws -> Void in
        do {
          try waitForCancellation()
        } catch {
          throw Oops("own")
        }
      }
      try co_yield()
      job.cancel(Oops("reason"))
      return outcome { try job.join() }
    }
    #expect(seen == "Oops(own)")
  }

  @Test func `a body that never checks continues undisturbed`() async throws {
    let started = Gate()
    let flag = Flag()
    let job = co_launch {
      started.open()
      while !flag.isRaised {}
      return 1
    }
    try await onCoroutine(on: taggedQueue("other")) { try started.pass() }
    job.cancel()
    #expect(job.isCancelled)
    flag.raise()
    #expect(try await job.value == 1)
  }

  @Test func `co_checkCancelled throws the reason after the cancellation, and nothing before`() async throws {
    let seen = try await onSerialQueue {
      let job = co_launch {
        let before = outcome { try co_checkCancelled() }
        _ = outcome { try waitForCancellation() }
        return [before, outcome { try co_checkCancelled() }]
      }
      try co_yield()
      job.cancel(Oops("checked"))
      return try job.join()
    }
    #expect(seen == ["()", "Oops(checked)"])
  }

  @Test func `from any thread, also from several at once, one reason wins`() async throws {
    for _ in 0..<50 {
      let started = Gate()
      let job = co_launch {
        started.open()
        return [outcome { try waitForCancellation() }, outcome { try co_yield() }]
      }
      try await onCoroutine { try started.pass() }
      for n in 0..<3 { startThread { job.cancel(Oops("\(n)")) } }
      let seen = try await job.value
      #expect(["Oops(0)", "Oops(1)", "Oops(2)"].contains(seen[0]))
      #expect(seen[0] == seen[1])
    }
  }

  @Test func `a coroutine may cancel itself: nothing happens before its next suspension`() async throws {
    let seen = try await onSerialQueue {
      let handle = Promise<Job<[String]>>()
      let job = co_launch {
        let me = try co_await(handle)
        me.cancel(Oops("self"))
        return ["still here", outcome { try co_yield() }]
      }
      handle.fulfill(job)
      return try job.join()
    }
    #expect(seen == ["still here", "Oops(self)"])
  }

  @Test func `after the end it changes nothing`() async throws {
    let seen = try await onCoroutine {
      let good = co_launch { 1 }
      let bad = co_launch { () throws -> Int in throw Oops("body") }
      _ = [outcome { try good.join() }, outcome { try bad.join() }]
      good.cancel(Oops("late"))
      bad.cancel(Oops("late"))
      return [outcome { try good.join() }, outcome { try bad.join() }]
    }
    #expect(seen == ["1", "Oops(body)"])
  }

  @Test func `does not reach jobs that the coroutine launched outside a scope`() async throws {
    let seen = try await onSerialQueue {
      let gate = Gate()
      let child = Promise<Job<String>>()
      let parent = co_launch {
        child.fulfill(
          co_launch {
            try gate.pass()
            return "child lives"
          }
        )
        try waitForCancellation()
      }
      try co_yield()
      parent.cancel()
      let first = outcome { try parent.join() }
      gate.open()
      return [first, try co_await(child).join()]
    }
    #expect(seen == ["CancellationError", "child lives"])
  }
}
